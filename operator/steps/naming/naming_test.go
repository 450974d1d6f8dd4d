// SPDX-License-Identifier: Apache-2.0

package naming_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	karpenterassets "github.com/autonode-io/autonode/assets/karpenter"
	"github.com/autonode-io/autonode/operator/provider/aws"
	"github.com/autonode-io/autonode/operator/steps/naming"
)

// assets are all that Karpenter consists of.
func assets(g Gomega) []client.Object {
	var objects []client.Object
	add := func(object client.Object, err error) {
		g.Expect(err).NotTo(HaveOccurred())
		objects = append(objects, object)
	}
	add(karpenterassets.ServiceAccount())
	add(karpenterassets.Role())
	add(karpenterassets.RoleBinding())
	add(karpenterassets.Deployment())
	add(aws.New().Deployment())
	add(karpenterassets.PodDisruptionBudget())
	add(karpenterassets.NetworkPolicy())
	add(karpenterassets.PodMonitor())
	return objects
}

func TestApply(t *testing.T) {
	t.Run("When the namespace is dedicated, it should change nothing", func(t *testing.T) {
		g := NewWithT(t)
		unchanged := assets(g)
		for i, object := range assets(g) {
			g.Expect(naming.Apply(v1beta1.DedicatedNames(), object)).To(Succeed())
			g.Expect(object).To(Equal(unchanged[i]))
		}
	})
	t.Run("When two Clusters share a namespace, no object of the one should have the name of another's", func(t *testing.T) {
		g := NewWithT(t)
		of := map[string][]client.Object{"blue": assets(g), "green": assets(g)}
		for cluster, objects := range of {
			for _, object := range objects {
				g.Expect(naming.Apply(v1beta1.SharedNames(cluster), object)).To(Succeed())
				g.Expect(object.GetName()).To(Equal("karpenter-" + cluster))
			}
		}
	})
	t.Run("When a kind isn't known, it should be an error and not a shared name", func(t *testing.T) {
		NewWithT(t).Expect(naming.Apply(v1beta1.SharedNames("blue"), &corev1.Pod{})).NotTo(Succeed())
	})
}

func TestDeployment(t *testing.T) {
	names := v1beta1.SharedNames("blue")
	g := NewWithT(t)
	deployment, err := karpenterassets.Deployment()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(naming.Apply(names, deployment)).To(Succeed())
	pod := deployment.Spec.Template.Spec

	t.Run("When Clusters share a namespace, a Deployment should select its own pods only", func(t *testing.T) {
		g := NewWithT(t)
		selector, err := metav1.LabelSelectorAsSelector(deployment.Spec.Selector)
		g.Expect(err).NotTo(HaveOccurred())
		for _, selects := range []labels.Selector{selector, naming.Pods(names)} {
			g.Expect(selects.Matches(labels.Set(deployment.Spec.Template.Labels))).To(BeTrue())
			g.Expect(selects.Matches(labels.Set{
				"app.kubernetes.io/name": "karpenter", "app.kubernetes.io/component": "autonode", "cluster.x-k8s.io/cluster-name": "green",
			})).To(BeFalse())
		}
		g.Expect(pod.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution[0].PodAffinityTerm.LabelSelector).To(Equal(deployment.Spec.Selector))
		g.Expect(pod.TopologySpreadConstraints[0].LabelSelector).To(Equal(deployment.Spec.Selector))
	})
	t.Run("When Clusters share a namespace, a pod should use its own ServiceAccount, Secrets and Lease, and the platform team's prices", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(pod.ServiceAccountName).To(Equal("karpenter-blue"))
		mounted := []string{}
		for _, volume := range pod.Volumes {
			if volume.Secret != nil {
				mounted = append(mounted, volume.Secret.SecretName)
			} else {
				mounted = append(mounted, volume.ConfigMap.Name)
			}
		}
		g.Expect(mounted).To(ConsistOf("karpenter-guest-access-blue", "karpenter-prices", "karpenter-profiles", "karpenter-node-images-blue"))
		g.Expect(pod.Containers[0].Env).To(ContainElement(corev1.EnvVar{Name: "LEADER_ELECTION_NAME", Value: "karpenter-leader-election-blue"}))
	})
	t.Run("When the Lease is in the guest, its name should stay", func(t *testing.T) {
		g := NewWithT(t)
		deployment, err := aws.New().Deployment()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(naming.Apply(names, deployment)).To(Succeed())
		g.Expect(deployment.Spec.Template.Spec.Containers[0].Env).To(ContainElement(corev1.EnvVar{Name: "LEADER_ELECTION_NAME", Value: "karpenter-leader-election"}))
	})
}

func TestRole(t *testing.T) {
	g := NewWithT(t)
	role, err := karpenterassets.Role()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(naming.Apply(v1beta1.SharedNames("blue"), role)).To(Succeed())
	named := map[string][]string{"clusters": {"blue"}, "capacityleases": {"karpenter-blue"}, "capacityleases/status": {"karpenter-blue"}}
	for _, rule := range role.Rules {
		for _, resource := range rule.Resources {
			if names, ok := named[resource]; ok {
				g.Expect(rule.ResourceNames).To(Equal(names), resource)
			}
		}
	}
	g.Expect(role.Rules).To(ContainElement(rbacv1.PolicyRule{
		APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{"karpenter-leader-election-blue"}, Verbs: []string{"get", "update"},
	}))
	g.Expect(role.Rules).To(ContainElement(rbacv1.PolicyRule{
		APIGroups: []string{"cluster.x-k8s.io"}, Resources: []string{"machinedeployments"}, Verbs: []string{"list", "watch"},
	}))
}
