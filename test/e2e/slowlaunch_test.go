// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// TestSlowLaunch: a machine whose failure its infrastructure doesn't report costs a minute. Karpenter gives it up and launches another offering.
// In the same cluster, a commitment makes on demand cheaper than spot.
func TestSlowLaunch(t *testing.T) {
	t.Parallel()
	c := acquireCluster(t, indigo)
	c.endsSettled(t, initialRelease, c.takeInventory(NewWithT(t), t.Context()))
	inZoneA := func(instanceTypes ...string) []poolOption {
		return []poolOption{
			require(corev1.LabelTopologyZone, "a"), require(corev1.LabelInstanceTypeStable, instanceTypes...),
			require(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeSpot),
		}
	}
	// Karpenter has measured then how long machines of the template take.
	c.nodePool(t, "usual", inZoneA("c2-small")...)
	c.workload(t, "usual", 1, "500m", onPool("usual"))
	c.waitRunning(t, "usual")
	c.fault(t, "c2-small", infrav1.FaultLateProviderID, "true")
	c.fault(t, "c2-small", infrav1.FaultNeverJoins, "true")

	t.Run("When a machine neither comes nor fails, it should give it up and launch the next cheapest offering", func(t *testing.T) {
		g := NewWithT(t)
		c.nodePool(t, "slow", inZoneA("c2-small", "c4-large")...)
		c.workload(t, "web", 1, "500m", onPool("slow"))
		c.waitRunning(t, "web")
		g.Expect(c.eventsOn(t.Context(), "NodeClaim", "LaunchSlow")).To(ContainElement(MatchRegexp(
			`no provider ID for .* \(spot c2-small in zone a\), where machines of template .* usually take .*; launching another offering, such as spot c4-large in zone a; the Machine reports .* for NodePool slow`)))
		g.Eventually(func(g Gomega, ctx context.Context) {
			nodes := c.nodesOf(g, ctx, "slow")
			g.Expect(nodes).To(HaveLen(1))
			g.Expect(nodes[0].Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, "c4-large"))
			g.Expect(c.machinesOf(g, ctx, "slow")).To(HaveLen(1))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	})

	t.Run("When on demand costs less than spot, consolidation should launch on demand", func(t *testing.T) {
		g := NewWithT(t)
		c.prices(t, "c4-large", "0.05", "0.10")
		c.prices(t, "c8-xlarge", "0.40", "0.45")
		c.nodePool(t, "plan", require(corev1.LabelInstanceTypeStable, "c4-large", "c8-xlarge"), require(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeOnDemand, karpv1.CapacityTypeSpot),
			func(pool *karpv1.NodePool) {
				pool.Spec.Disruption.ConsolidationPolicy = karpv1.ConsolidationPolicyWhenEmptyOrUnderutilized
			})
		c.workload(t, "plan", 6, "1", onPool("plan"))
		c.waitRunning(t, "plan")
		offering := func(instanceType string) gomegatypes.GomegaMatcher {
			return ConsistOf(HaveField("Labels", And(HaveKeyWithValue(corev1.LabelInstanceTypeStable, instanceType),
				HaveKeyWithValue(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeOnDemand))))
		}
		g.Expect(c.nodesOf(g, t.Context(), "plan")).To(offering("c8-xlarge"))
		c.scale(t, "plan", 1)
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.nodesOf(g, ctx, "plan")).To(offering("c4-large"))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	})
}

// prices sets those of a template's machines, until the test ends.
func (c *cluster) prices(t *testing.T, template, onDemand, spot string) {
	t.Helper()
	object := &infrav1.KwokMachineTemplate{}
	NewWithT(t).Expect(c.management.Get(t.Context(), client.ObjectKey{Namespace: c.namespace(), Name: template}, object)).To(Succeed())
	for name, price := range map[string]string{v1alpha1.PriceAnnotation: onDemand, v1alpha1.SpotPriceAnnotation: spot} {
		before := object.Annotations[name]
		c.annotate(NewWithT(t), t.Context(), object, name, price)
		t.Cleanup(func() { c.annotate(NewWithT(t), context.WithoutCancel(t.Context()), object, name, before) })
	}
}
