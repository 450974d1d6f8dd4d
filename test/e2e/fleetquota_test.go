// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// exhausted has one cluster find that a zone has no spot capacity, before another one would like some there.
func (f *fleet) exhausted(t *testing.T) {
	g := NewWithT(t)
	finds, hears := f.clusters[0], f.clusters[1]
	for _, c := range []*cluster{finds, hears} {
		for _, template := range []string{"c2-small", "c4-large"} {
			c.fault(t, template, infrav1.FaultNoCapacity, "a/spot")
		}
		c.nodePool(t, "frugal", require(corev1.LabelTopologyZone, "a", "b"), require(corev1.LabelInstanceTypeStable, "c2-small", "c4-large"),
			require(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeSpot))
	}
	ratherInA := func(template *corev1.PodTemplateSpec) {
		inA := corev1.NodeSelectorRequirement{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}
		template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{
			{Weight: 1, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{inA}}},
		}}}
	}
	attempts := func(c *cluster) []string {
		events, err := c.eventsOn(t.Context(), "NodeClaim", "InsufficientCapacity")
		g.Expect(err).NotTo(HaveOccurred())
		return events
	}
	finds.workload(t, "frugal", 1, "500m", onPool("frugal"), ratherInA)
	finds.waitRunning(t, "frugal")
	g.Expect(attempts(finds)).To(ConsistOf(ContainSubstring("spot c2-small in zone a"), ContainSubstring("spot c4-large in zone a")))

	g.Eventually(func(g Gomega, ctx context.Context) {
		lease := f.lease(g, ctx, hears)
		for _, instanceType := range []string{"c2-small", "c4-large"} {
			g.Expect(lease.Spec.Unavailable).To(ContainElement(And(HaveField("InstanceType", instanceType), HaveField("Zone", "a"), HaveField("CapacityType", karpv1.CapacityTypeSpot))))
		}
		g.Expect(lease.Status.ObservedGeneration).To(Equal(lease.Generation))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	hears.workload(t, "frugal", 1, "500m", onPool("frugal"), ratherInA)
	hears.waitRunning(t, "frugal")
	g.Expect(attempts(hears)).To(BeEmpty(), "it never tries what the other one has found exhausted")
	g.Expect(hears.nodesOf(g, t.Context(), "frugal")).To(ConsistOf(HaveField("Labels", HaveKeyWithValue(corev1.LabelTopologyZone, "b"))))
}

// limited has two clusters call for more machines than their quota allows, until it is raised.
func (f *fleet) limited(t *testing.T) {
	g := NewWithT(t)
	const limit, wanted = "3", "4"
	pool := autonodev1alpha1.QuotaPool("large", "machines")
	f.change(t, func(spec *autonodev1alpha1.CapacityAccountSpec) {
		spec.Quotas = append(spec.Quotas, autonodev1alpha1.CapacityQuota{
			Name: "large", Selector: autonodev1alpha1.CapacitySelector{InstanceTypes: []string{"c4-large"}, Zones: []string{"b"}},
			Limits: autonodev1alpha1.CapacityAmounts{"machines": scalar.Text(limit)},
		})
	})
	clusters := f.clusters[:2]
	g.Eventually(func(g Gomega, ctx context.Context) {
		for _, c := range clusters {
			lease := f.lease(g, ctx, c)
			g.Expect(lease.Spec.Pools).To(ContainElement(HaveField("Name", pool)))
			g.Expect(lease.Status.AcknowledgedSequence).To(Equal(lease.Spec.Sequence))
		}
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	for _, c := range clusters {
		c.nodePool(t, "large", require(corev1.LabelTopologyZone, "b"), require(corev1.LabelInstanceTypeStable, "c4-large"), require(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeSpot))
		c.workload(t, "large", 2, "500m", onPool("large"), apart)
	}
	used := func(g Gomega, ctx context.Context) autonodev1alpha1.CapacityPoolStatus {
		for _, status := range f.found(g, ctx).Status.Pools {
			if status.Name == pool {
				return status
			}
		}
		return autonodev1alpha1.CapacityPoolStatus{}
	}
	g.Eventually(func(g Gomega, ctx context.Context) {
		phases := map[corev1.PodPhase]int{}
		for _, c := range clusters {
			pods := &corev1.PodList{}
			g.Expect(c.guest.List(ctx, pods, client.InNamespace(metav1.NamespaceDefault), client.MatchingLabels{"app": "large"})).To(Succeed())
			for i := range pods.Items {
				phases[pods.Items[i].Status.Phase]++
			}
		}
		g.Expect(phases).To(Equal(map[corev1.PodPhase]int{corev1.PodRunning: 3, corev1.PodPending: 1}))
		g.Expect(used(g, ctx)).To(And(HaveField("Limit", limit), HaveField("Used", limit)))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())

	f.change(t, func(spec *autonodev1alpha1.CapacityAccountSpec) {
		spec.Quotas[len(spec.Quotas)-1].Limits["machines"] = scalar.Text(wanted)
	})
	for _, c := range clusters {
		c.waitRunning(t, "large")
	}
	g.Eventually(used).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(And(HaveField("Limit", wanted), HaveField("Used", wanted)))
}
