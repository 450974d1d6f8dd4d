// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// reader reads the objects that a pod may refer to.
type reader interface {
	secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	configMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
}

// environment is what a container's environment is made from.
type environment struct {
	objects     reader
	pod         *corev1.Pod
	container   *corev1.Container
	allocatable corev1.ResourceList
	// cluster holds what every container of the cluster gets, and may refer to; a container's own settings win.
	cluster map[string]string
}

// build returns the container's own variables, references resolved and $(NAME) expanded. An error is one that a person
// has to repair: a missing object or key.
func (e environment) build(ctx context.Context) (map[string]string, error) {
	own := map[string]string{}
	for _, from := range e.container.EnvFrom {
		values, err := e.envFrom(ctx, from)
		if err != nil {
			return nil, err
		}
		for name, value := range values {
			own[from.Prefix+name] = value
		}
	}
	for _, variable := range e.container.Env {
		value, set, err := e.value(ctx, variable, e.visible(own))
		if err != nil {
			return nil, err
		}
		if set {
			own[variable.Name] = value
		}
	}
	return own, nil
}

// visible is what $(NAME) can name: not the image's variables.
func (e environment) visible(own map[string]string) map[string]string {
	all := map[string]string{}
	maps.Copy(all, e.cluster)
	maps.Copy(all, own)
	return all
}

func (e environment) envFrom(ctx context.Context, from corev1.EnvFromSource) (map[string]string, error) {
	values := map[string]string{}
	switch {
	case from.ConfigMapRef != nil:
		configMap, err := e.objects.configMap(ctx, e.pod.Namespace, from.ConfigMapRef.Name)
		if err != nil {
			return nil, optionalError(err, from.ConfigMapRef.Optional)
		}
		maps.Copy(values, configMap.Data)
	case from.SecretRef != nil:
		secret, err := e.objects.secret(ctx, e.pod.Namespace, from.SecretRef.Name)
		if err != nil {
			return nil, optionalError(err, from.SecretRef.Optional)
		}
		for key, value := range secret.Data {
			values[key] = string(value)
		}
	}
	return values, nil
}

func (e environment) value(ctx context.Context, variable corev1.EnvVar, visible map[string]string) (string, bool, error) {
	from := variable.ValueFrom
	switch {
	case from == nil:
		return expand(variable.Value, visible), true, nil
	case from.FieldRef != nil:
		value, err := podField(e.pod, from.FieldRef.FieldPath)
		return value, true, err
	case from.ResourceFieldRef != nil:
		value, err := resourceField(e.pod, e.container, e.allocatable, from.ResourceFieldRef)
		return value, true, err
	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		configMap, err := e.objects.configMap(ctx, e.pod.Namespace, ref.Name)
		if err != nil {
			return "", false, optionalError(err, ref.Optional)
		}
		value, ok := configMap.Data[ref.Key]
		if !ok && !ptr.Deref(ref.Optional, false) {
			return "", false, fmt.Errorf("couldn't find key %s in ConfigMap %s/%s", ref.Key, e.pod.Namespace, ref.Name)
		}
		return value, ok, nil
	case from.SecretKeyRef != nil:
		ref := from.SecretKeyRef
		secret, err := e.objects.secret(ctx, e.pod.Namespace, ref.Name)
		if err != nil {
			return "", false, optionalError(err, ref.Optional)
		}
		value, ok := secret.Data[ref.Key]
		if !ok && !ptr.Deref(ref.Optional, false) {
			return "", false, fmt.Errorf("couldn't find key %s in Secret %s/%s", ref.Key, e.pod.Namespace, ref.Name)
		}
		return string(value), ok, nil
	}
	return "", false, fmt.Errorf("env %s: the node agent doesn't know this kind of valueFrom", variable.Name)
}

// optionalError drops a NotFound error of an optional reference.
func optionalError(err error, optional *bool) error {
	if apierrors.IsNotFound(err) && ptr.Deref(optional, false) {
		return nil
	}
	return err
}

// expand replaces $(NAME) by a variable's value; $$ stands for one $, and an unknown name stays as it is written.
// https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/
func expand(value string, variables map[string]string) string {
	var out strings.Builder
	for i := 0; i < len(value); i++ {
		if value[i] != '$' || i+1 == len(value) {
			out.WriteByte(value[i])
			continue
		}
		switch value[i+1] {
		case '$':
			out.WriteByte('$')
			i++
		case '(':
			end := strings.IndexByte(value[i+2:], ')')
			if end < 0 {
				out.WriteString("$(")
				i++
				continue
			}
			name := value[i+2 : i+2+end]
			if found, ok := variables[name]; ok {
				out.WriteString(found)
			} else {
				out.WriteString("$(" + name + ")")
			}
			i += 2 + end
		default:
			out.WriteByte('$')
		}
	}
	return out.String()
}

func expandAll(values []string, variables map[string]string) []string {
	out := make([]string, len(values))
	for i, value := range values {
		out[i] = expand(value, variables)
	}
	return out
}

// podField reads a field by the path that a fieldRef may name.
func podField(pod *corev1.Pod, path string) (string, error) {
	if field, key, ok := subscript(path); ok {
		switch field {
		case "metadata.labels":
			return pod.Labels[key], nil
		case "metadata.annotations":
			return pod.Annotations[key], nil
		}
	}
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return formatMap(pod.Labels), nil
	case "metadata.annotations":
		return formatMap(pod.Annotations), nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs":
		return loopback, nil
	}
	return "", fmt.Errorf("unsupported fieldPath: %s", path)
}

// subscript splits metadata.labels['a/b'].
func subscript(path string) (field, key string, ok bool) {
	field, rest, ok := strings.Cut(path, "['")
	if !ok || !strings.HasSuffix(rest, "']") {
		return "", "", false
	}
	return field, strings.TrimSuffix(rest, "']"), true
}

func formatMap(values map[string]string) string {
	lines := make([]string, 0, len(values))
	for _, key := range slices.Sorted(maps.Keys(values)) {
		lines = append(lines, key+"="+strconv.Quote(values[key]))
	}
	return strings.Join(lines, "\n")
}

// resourceField reads a container's request or limit, in units of the divisor, rounded up. A limit that isn't set is
// what the node can give.
func resourceField(pod *corev1.Pod, container *corev1.Container, allocatable corev1.ResourceList, ref *corev1.ResourceFieldSelector) (string, error) {
	if ref.ContainerName != "" && ref.ContainerName != container.Name {
		found := containerNamed(pod, ref.ContainerName)
		if found == nil {
			return "", fmt.Errorf("resourceFieldRef names container %q, which the pod doesn't have", ref.ContainerName)
		}
		container = found
	}
	kind, name, ok := strings.Cut(ref.Resource, ".")
	if !ok {
		return "", fmt.Errorf("unsupported resource: %s", ref.Resource)
	}
	var value resource.Quantity
	switch kind {
	case "limits":
		value, ok = container.Resources.Limits[corev1.ResourceName(name)]
		if !ok || value.IsZero() {
			value = allocatable[corev1.ResourceName(name)]
		}
	case "requests":
		value = container.Resources.Requests[corev1.ResourceName(name)]
	default:
		return "", fmt.Errorf("unsupported resource: %s", ref.Resource)
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = *resource.NewQuantity(1, resource.DecimalSI)
	}
	if name == string(corev1.ResourceCPU) {
		return strconv.FormatInt(divideUp(value.MilliValue(), divisor.MilliValue()), 10), nil
	}
	return strconv.FormatInt(divideUp(value.Value(), divisor.Value()), 10), nil
}

func divideUp(a, b int64) int64 {
	return (a + b - 1) / b
}

func containerNamed(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}
