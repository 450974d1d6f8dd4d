// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// TestSlowLaunch: a machine whose failure its infrastructure doesn't report costs a minute. Karpenter gives it up and launches another offering.
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
}
