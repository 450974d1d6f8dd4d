// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// unsupported returns what a pod requests that the agent doesn't have; empty when it has everything. What only restricts a
// pod, such as a resource limit, isn't enforced and isn't refused: see the package's documentation.
func unsupported(pod *corev1.Pod) string {
	var missing []string
	need := func(asked bool, format string, args ...any) {
		if asked {
			missing = append(missing, fmt.Sprintf(format, args...))
		}
	}
	spec := &pod.Spec
	need(len(spec.InitContainers) > 0, "init containers")
	need(len(spec.Containers) > 1, "several containers in a pod")
	need(spec.RestartPolicy != corev1.RestartPolicyAlways, "restartPolicy %s", spec.RestartPolicy)
	need(spec.ActiveDeadlineSeconds != nil, "activeDeadlineSeconds")
	need(len(spec.ReadinessGates) > 0, "readiness gates")
	need(spec.HostNetwork || spec.HostPID || spec.HostIPC, "the host's namespaces")
	for _, volume := range spec.Volumes {
		need(!knownVolume(volume.VolumeSource), "the kind of volume %q", volume.Name)
	}
	for i := range spec.Containers {
		missing = append(missing, unsupportedByContainer(&spec.Containers[i])...)
	}
	if len(missing) == 0 {
		return ""
	}
	return "the world's node agent doesn't have " + strings.Join(missing, ", ")
}

func unsupportedByContainer(container *corev1.Container) (missing []string) {
	need := func(asked bool, format string, args ...any) {
		if asked {
			missing = append(missing, fmt.Sprintf(format, args...))
		}
	}
	need(container.Lifecycle != nil, "lifecycle hooks")
	need(container.StartupProbe != nil, "startup probes")
	need(container.ImagePullPolicy == corev1.PullNever, "imagePullPolicy Never")
	need(len(container.EnvFrom) > 0, "envFrom")
	for _, probe := range []*corev1.Probe{container.LivenessProbe, container.ReadinessProbe} {
		need(probe != nil && probe.HTTPGet == nil, "probes other than httpGet")
		need(probe != nil && probe.TerminationGracePeriodSeconds != nil, "a probe's terminationGracePeriodSeconds")
	}
	for _, port := range container.Ports {
		need(port.HostPort != 0, "host ports")
	}
	for _, mount := range container.VolumeMounts {
		need(mount.SubPath != "" || mount.SubPathExpr != "", "subPath of mount %s", mount.MountPath)
	}
	for _, variable := range container.Env {
		switch from := variable.ValueFrom; {
		case from != nil:
			need(from.FieldRef == nil || !knownField(from.FieldRef.FieldPath), "the valueFrom of variable %s", variable.Name)
		default:
			need(refers(variable.Value), "references such as that of variable %s", variable.Name)
		}
	}
	for _, word := range append(append([]string{}, container.Command...), container.Args...) {
		need(refers(word), "references such as %s", word)
	}
	return missing
}

// refers reports whether a value names a variable; $$ stands for one $ that begins no reference.
func refers(value string) bool { return strings.Contains(strings.ReplaceAll(value, "$$", ""), "$(") }

func knownVolume(volume corev1.VolumeSource) bool {
	if volume.Projected == nil {
		return volume.EmptyDir != nil || volume.Secret != nil || volume.ConfigMap != nil
	}
	for _, source := range volume.Projected.Sources {
		for _, item := range ptr.Deref(source.DownwardAPI, corev1.DownwardAPIProjection{}).Items {
			if item.FieldRef == nil || !knownField(item.FieldRef.FieldPath) {
				return false
			}
		}
		if source.DownwardAPI == nil && source.Secret == nil && source.ConfigMap == nil && source.ServiceAccountToken == nil {
			return false
		}
	}
	return true
}

func knownField(path string) bool {
	_, ok := podField(&corev1.Pod{}, path)
	return ok
}

// podField reads a field by the path that a fieldRef may name.
func podField(pod *corev1.Pod, path string) (value string, ok bool) {
	switch path {
	case "metadata.name":
		return pod.Name, true
	case "metadata.namespace":
		return pod.Namespace, true
	case "metadata.uid":
		return string(pod.UID), true
	case "spec.nodeName":
		return pod.Spec.NodeName, true
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, true
	case "status.podIP":
		return loopback, true
	}
	return "", false
}
