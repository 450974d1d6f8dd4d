// SPDX-License-Identifier: Apache-2.0

package component

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/assets/karpenter"
)

// PullSecretName is the name of the copy of a HostedCluster's pull secret in its control-plane namespace.
const PullSecretName = "karpenter-pull-secret"

// Input is what the adapt functions know. They can read, and never write.
type Input struct {
	// Namespace is the control-plane namespace.
	Namespace string
	// Labels are put on every object.
	Labels map[string]string
	// ClusterName is the name of the Cluster API Cluster.
	ClusterName string
	// Image is Karpenter's image by digest.
	Image string
	// NodeVersion is the Kubernetes version that the payload gives to nodes.
	NodeVersion string
	// ClusterAPI is what the HostedCluster says.
	ClusterAPI *v1beta1.ClusterAPI
	// PullSecret is the HostedCluster's, nil if it has none.
	PullSecret *corev1.Secret
	// Monitoring says that the management cluster serves PodMonitors.
	Monitoring bool
	// Reader reads the management cluster.
	Reader client.Reader
	// Mapper knows the management cluster's kinds.
	Mapper meta.RESTMapper
}

// render returns everything that makes Karpenter up in the control-plane namespace, in the order in which it is applied.
func render(ctx context.Context, in Input) ([]client.Object, error) {
	var objects []client.Object
	add := func(obj client.Object, err error) error {
		if err != nil {
			return err
		}
		obj.SetNamespace(in.Namespace)
		labels := obj.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		for key, value := range in.Labels {
			labels[key] = value
		}
		obj.SetLabels(labels)
		objects = append(objects, obj)
		return nil
	}

	if err := add(adapted(karpenter.ServiceAccount, in.adaptServiceAccount)); err != nil {
		return nil, err
	}
	role, err := karpenter.Role()
	if err == nil {
		err = in.adaptRole(ctx, role)
	}
	if err := add(role, err); err != nil {
		return nil, err
	}
	if err := add(adapted(karpenter.RoleBinding, in.adaptRoleBinding)); err != nil {
		return nil, err
	}
	if in.copiesPullSecret() {
		if err := add(in.pullSecret(), nil); err != nil {
			return nil, err
		}
	}
	if err := add(adapted(karpenter.PodDisruptionBudget, nil)); err != nil {
		return nil, err
	}
	if err := add(adapted(karpenter.Deployment, in.adaptDeployment)); err != nil {
		return nil, err
	}
	if in.Monitoring {
		if err := add(adapted(karpenter.PodMonitor, nil)); err != nil {
			return nil, err
		}
	}
	return objects, nil
}

// adapted loads an asset and changes what varies.
func adapted[T client.Object](load func() (T, error), adapt func(T) error) (client.Object, error) {
	obj, err := load()
	if err == nil && adapt != nil {
		err = adapt(obj)
	}
	return obj, err
}

// copiesPullSecret is false where pods can use the HostedCluster's own.
func (in Input) copiesPullSecret() bool {
	return in.PullSecret != nil && in.PullSecret.Namespace != in.Namespace
}

func (in Input) pullSecret() *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: PullSecretName},
		Type:       corev1.SecretTypeDockerConfigJson,
		Data:       map[string][]byte{corev1.DockerConfigJsonKey: in.PullSecret.Data[corev1.DockerConfigJsonKey]},
	}
}

func (in Input) imagePullSecrets() []corev1.LocalObjectReference {
	switch {
	case in.PullSecret == nil:
		return nil
	case in.copiesPullSecret():
		return []corev1.LocalObjectReference{{Name: PullSecretName}}
	default:
		return []corev1.LocalObjectReference{{Name: in.PullSecret.Name}}
	}
}

func (in Input) adaptServiceAccount(sa *corev1.ServiceAccount) error {
	sa.ImagePullSecrets = in.imagePullSecrets()
	return nil
}

func (in Input) adaptRoleBinding(binding *rbacv1.RoleBinding) error {
	for i := range binding.Subjects {
		binding.Subjects[i].Namespace = in.Namespace
	}
	return nil
}

func (in Input) adaptDeployment(deployment *appsv1.Deployment) error {
	for key, value := range in.Labels {
		metav1.SetMetaDataLabel(&deployment.Spec.Template.ObjectMeta, key, value)
	}
	pod := &deployment.Spec.Template.Spec
	if len(pod.Containers) != 1 {
		return fmt.Errorf("the Deployment asset has %d containers, not one", len(pod.Containers))
	}
	container := &pod.Containers[0]
	container.Image = in.Image
	// Always, if only to allow none: node classes are in the guest, and whoever writes one must not decide what a machine reads.
	patches, err := json.Marshal(append([]v1alpha1.BootstrapPatches{}, in.ClusterAPI.BootstrapPatches...))
	if err != nil {
		return fmt.Errorf("encoding the bootstrap patches: %w", err)
	}
	container.Args = append(container.Args, "--cluster-name="+in.ClusterName, "--node-version="+in.NodeVersion)
	// The kubelet replaces variables in values, and those of a patch aren't its own.
	container.Env = append(container.Env, corev1.EnvVar{Name: "ALLOWED_BOOTSTRAP_PATCHES", Value: strings.ReplaceAll(string(patches), "$", "$$")})
	pod.ImagePullSecrets = in.imagePullSecrets()
	return nil
}

var (
	readVerbs  = []string{"get", "list", "watch"}
	writeVerbs = []string{"get", "list", "watch", "create", "patch", "delete"}
)

// adaptRole adds the kinds that this cluster's shapes and bootstrap are of: templates are read, what is cloned from them is written.
func (in Input) adaptRole(ctx context.Context, role *rbacv1.Role) error {
	named, err := in.templates(ctx)
	if err != nil {
		return err
	}
	read, write := map[string]sets.Set[string]{}, map[string]sets.Set[string]{}
	for template, demanded := range named {
		for rules, kind := range map[*map[string]sets.Set[string]]schema.GroupKind{
			&read:  template,
			&write: {Group: template.Group, Kind: strings.TrimSuffix(template.Kind, clusterv1.TemplateSuffix)},
		} {
			mapping, err := in.Mapper.RESTMapping(kind)
			if meta.IsNoMatchError(err) && !demanded {
				continue // the MachineDeployment that names it can't work either; the node class says so
			}
			if err != nil {
				return fmt.Errorf("looking up kind %s: %w", kind, err)
			}
			if (*rules)[kind.Group] == nil {
				(*rules)[kind.Group] = sets.New[string]()
			}
			(*rules)[kind.Group].Insert(mapping.Resource.Resource)
		}
	}
	role.Rules = append(role.Rules, rulesFor(read, readVerbs)...)
	role.Rules = append(role.Rules, rulesFor(write, writeVerbs)...)
	if in.ClusterAPI.Bootstrap != nil && in.ClusterAPI.Bootstrap.DataSecretName != "" {
		role.Rules = append(role.Rules, rbacv1.PolicyRule{
			APIGroups: []string{""}, Resources: []string{"secrets"},
			ResourceNames: []string{in.ClusterAPI.Bootstrap.DataSecretName}, Verbs: []string{"get"},
		})
	}
	return nil
}

// rulesFor is sorted, so that the same kinds always make the same Role.
func rulesFor(resources map[string]sets.Set[string], verbs []string) []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	for _, group := range slices.Sorted(maps.Keys(resources)) {
		rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{group}, Resources: sets.List(resources[group]), Verbs: verbs})
	}
	return rules
}

// templates returns the template kinds that the HostedCluster names (true) and those of the MachineDeployments that it selects (false).
func (in Input) templates(ctx context.Context) (map[schema.GroupKind]bool, error) {
	kinds := map[schema.GroupKind]bool{}
	if in.ClusterAPI.ScalableResourceSelector != nil {
		selector, err := metav1.LabelSelectorAsSelector(in.ClusterAPI.ScalableResourceSelector)
		if err != nil {
			return nil, fmt.Errorf("parsing scalableResourceSelector: %w", err)
		}
		deployments := &clusterv1.MachineDeploymentList{}
		if err := in.Reader.List(ctx, deployments, client.InNamespace(in.Namespace), client.MatchingLabelsSelector{Selector: selector}); err != nil {
			return nil, fmt.Errorf("listing machine deployments: %w", err)
		}
		for i := range deployments.Items {
			spec := &deployments.Items[i].Spec
			if spec.ClusterName != in.ClusterName {
				continue
			}
			kinds[spec.Template.Spec.InfrastructureRef.GroupKind()] = false
			if ref := spec.Template.Spec.Bootstrap.ConfigRef; ref.IsDefined() {
				kinds[ref.GroupKind()] = false
			}
		}
	}
	for _, selector := range in.ClusterAPI.InfrastructureTemplateSelectors {
		kinds[schema.GroupKind{Group: selector.APIGroup, Kind: selector.Kind}] = true
	}
	if bootstrap := in.ClusterAPI.Bootstrap; bootstrap != nil && bootstrap.ConfigTemplateRef != nil {
		kinds[schema.GroupKind{Group: bootstrap.ConfigTemplateRef.APIGroup, Kind: bootstrap.ConfigTemplateRef.Kind}] = true
	}
	return kinds, nil
}
