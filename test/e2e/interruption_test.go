// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// TestInterruption: the infrastructure takes a machine back, and terminates another one. Karpenter replaces both without a person.
func TestInterruption(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := acquireCluster(t, indigo)
	c.endsSettled(t, initialRelease, c.takeInventory(g, t.Context()))
	c.nodePool(t, "reclaimed")
	c.workload(t, "stall", 1, "500m", onPool("reclaimed"), apart)
	c.waitRunning(t, "stall")
	// fault sets a fault on the only machine, and waits until another one has taken its place.
	fault := func(t *testing.T, name, reason, message string) {
		t.Helper()
		g := NewWithT(t)
		machines := c.machinesOf(g, t.Context(), "reclaimed")
		g.Expect(machines).To(HaveLen(1))
		old := machines[0]
		c.annotate(g, t.Context(), c.infrastructureOf(g, t.Context(), old), name, "true")
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.eventsOn(ctx, "NodeClaim", reason)).To(ContainElement(And(ContainSubstring(old), ContainSubstring(message))))
			g.Expect(c.machinesOf(g, ctx, "reclaimed")).To(ConsistOf(Not(Equal(old))))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		c.waitRunning(t, "stall")
	}

	t.Run("When the infrastructure takes a machine back, its node should be drained and replaced before that", func(t *testing.T) {
		fault(t, infrav1.FaultInterrupted, "Interrupted", "its node is drained and replaced")
	})

	t.Run("When an instance is terminated, its node should be replaced without a drain, independent of a PodDisruptionBudget", func(t *testing.T) {
		c.disruptionBudget(t, "stall", policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(1))})
		fault(t, infrav1.FaultTerminated, "InstanceTerminated", "launching a replacement")
	})
}
