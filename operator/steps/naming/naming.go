// SPDX-License-Identifier: Apache-2.0

// Package naming gives the manifests of Karpenter, which are written for a dedicated control-plane namespace, the names and selectors that
// they need in one that HostedClusters share. In a dedicated namespace it changes nothing.
package naming

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
)

// podLabels are on Karpenter's pods in every control-plane namespace; the Deployment assets' selectors say the same.
var podLabels = labels.Set{"app.kubernetes.io/name": v1beta1.KarpenterComponent, "app.kubernetes.io/component": "autonode"}

// Pods selects Karpenter's pods of one hosted cluster in its control-plane namespace.
func Pods(names v1beta1.Names) labels.Selector {
	return labels.SelectorFromSet(labels.Merge(podLabels, clusterLabels(names)))
}

// clusterLabels are the labels that distinguish a cluster's pods from those of the others in the namespace.
func clusterLabels(names v1beta1.Names) labels.Set {
	if !names.Shared() {
		return labels.Set{}
	}
	return labels.Set{v1beta1.ClusterNameLabel: names.Cluster}
}

// Apply renames an object of Karpenter's, its references and its selectors.
func Apply(names v1beta1.Names, object client.Object) error {
	if !names.Shared() {
		return nil
	}
	n := renaming{names}
	object.SetName(n.name(object.GetName()))
	switch object := object.(type) {
	case *appsv1.Deployment:
		n.deployment(object)
	case *rbacv1.Role:
		n.role(object)
	case *rbacv1.RoleBinding:
		object.RoleRef.Name = n.name(object.RoleRef.Name)
		for i := range object.Subjects {
			object.Subjects[i].Name = n.name(object.Subjects[i].Name)
		}
	case *policyv1.PodDisruptionBudget:
		n.selector(object.Spec.Selector)
	case *networkingv1.NetworkPolicy:
		n.selector(&object.Spec.PodSelector)
	case *unstructured.Unstructured: // a PodMonitor
		for key, value := range clusterLabels(names) {
			if err := unstructured.SetNestedField(object.Object, value, "spec", "selector", "matchLabels", key); err != nil {
				return fmt.Errorf("selecting the pods of Cluster %s: %w", names.Cluster, err)
			}
		}
		// In a dedicated namespace the label namespace of its metrics reports whose they are.
		if err := unstructured.SetNestedStringSlice(object.Object, []string{v1beta1.ClusterNameLabel}, "spec", "podTargetLabels"); err != nil {
			return fmt.Errorf("labelling the metrics of Cluster %s: %w", names.Cluster, err)
		}
	case *corev1.ServiceAccount, *corev1.Secret, *corev1.ConfigMap:
	default:
		return fmt.Errorf("%T has no names for a shared namespace", object)
	}
	return nil
}

// renaming maps the names of a dedicated namespace.
type renaming struct{ v1beta1.Names }

// name returns a name as it is. An object that the operator doesn't make, such as the platform team's prices, serves all clusters of the
// namespace.
func (n renaming) name(name string) string {
	switch dedicated := v1beta1.DedicatedNames(); name {
	case dedicated.Karpenter:
		return n.Karpenter
	case dedicated.GuestAccess:
		return n.GuestAccess
	case dedicated.PullSecret:
		return n.PullSecret
	case dedicated.NodeImages:
		return n.NodeImages
	case dedicated.LeaderElection:
		return n.LeaderElection
	}
	return name
}

func (n renaming) selector(selector *metav1.LabelSelector) {
	for key, value := range clusterLabels(n.Names) {
		metav1.AddLabelToSelector(selector, key, value)
	}
}

func (n renaming) deployment(deployment *appsv1.Deployment) {
	n.selector(deployment.Spec.Selector)
	for key, value := range clusterLabels(n.Names) {
		metav1.SetMetaDataLabel(&deployment.Spec.Template.ObjectMeta, key, value)
	}
	pod := &deployment.Spec.Template.Spec
	pod.ServiceAccountName = n.name(pod.ServiceAccountName)
	if pod.Affinity != nil && pod.Affinity.PodAntiAffinity != nil {
		terms := pod.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution
		for i := range terms {
			n.selector(terms[i].PodAffinityTerm.LabelSelector)
		}
	}
	for i := range pod.TopologySpreadConstraints {
		n.selector(pod.TopologySpreadConstraints[i].LabelSelector)
	}
	for i := range pod.Volumes {
		if secret := pod.Volumes[i].Secret; secret != nil {
			secret.SecretName = n.name(secret.SecretName)
		}
		if configMap := pod.Volumes[i].ConfigMap; configMap != nil {
			configMap.Name = n.name(configMap.Name)
		}
	}
	for i := range pod.Containers {
		n.leaderElection(pod.Containers[i].Env)
	}
}

// leaderElection renames the Lease where it is in the control-plane namespace. In a guest there is one Karpenter.
func (n renaming) leaderElection(env []corev1.EnvVar) {
	here := slices.ContainsFunc(env, func(variable corev1.EnvVar) bool {
		return variable.Name == "LEADER_ELECTION_NAMESPACE" && variable.ValueFrom != nil && variable.ValueFrom.FieldRef != nil
	})
	for i := range env {
		if here && env[i].Name == "LEADER_ELECTION_NAME" {
			env[i].Value = n.name(env[i].Value)
		}
	}
}

// role names this cluster's own objects wherever a rule can: its Cluster, its CapacityLease and its Lease. Of other kinds a Role covers all
// objects of the namespace, and the policy sharednamespaces.autonode.io in the management cluster bounds writes.
func (n renaming) role(role *rbacv1.Role) {
	var rules []rbacv1.PolicyRule
	for _, rule := range role.Rules {
		for i := range rule.ResourceNames {
			rule.ResourceNames[i] = n.name(rule.ResourceNames[i])
		}
		if len(rule.ResourceNames) > 0 {
			rules = append(rules, rule)
			continue
		}
		for resource, name := range map[string]string{"clusters": n.Cluster, "capacityleases": n.Karpenter} {
			if !slices.Contains(rule.Resources, resource) {
				continue
			}
			named := *rule.DeepCopy()
			named.Resources, named.ResourceNames = []string{resource}, []string{name}
			rules = append(rules, named)
			rule.Resources = slices.DeleteFunc(rule.Resources, func(r string) bool { return r == resource })
		}
		if len(rule.Resources) > 0 {
			rules = append(rules, rule)
		}
	}
	role.Rules = rules
}
