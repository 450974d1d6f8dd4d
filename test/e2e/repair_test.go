// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// TestRepair: a platform team's MachineHealthCheck finds a dead machine, and Karpenter replaces it; not when it finds too many at once.
func TestRepair(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := acquireCluster(t, green)
	c.endsSettled(t, initialRelease, c.takeInventory(g, t.Context()))
	c.nodePool(t, "mended")
	c.workload(t, "web", 1, "500m", onPool("mended"), apart)
	c.waitRunning(t, "web")
	inPool := client.MatchingLabels{karpv1.NodePoolLabelKey: "mended"}
	check := &clusterv1.MachineHealthCheck{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace(), Name: "mended"},
		Spec: clusterv1.MachineHealthCheckSpec{
			ClusterName: c.name,
			Selector:    metav1.LabelSelector{MatchLabels: inPool},
			Checks: clusterv1.MachineHealthCheckChecks{UnhealthyNodeConditions: []clusterv1.UnhealthyNodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, TimeoutSeconds: ptr.To[int32](1)},
			}},
		},
	}
	g.Expect(c.management.Create(t.Context(), check)).To(Succeed())
	t.Cleanup(func() {
		NewWithT(t).Expect(c.management.Delete(context.WithoutCancel(t.Context()), check)).To(Succeed())
	})

	t.Run("When a MachineHealthCheck marks a machine, it should replace its node and say why", func(t *testing.T) {
		g := NewWithT(t)
		machines := &infrav1.KwokMachineList{}
		g.Expect(c.management.List(t.Context(), machines, client.InNamespace(c.namespace()), inPool)).To(Succeed())
		g.Expect(machines.Items).To(HaveLen(1))
		dead := machines.Items[0].Name // the Machine has the same
		c.annotate(g, t.Context(), &machines.Items[0], infrav1.FaultDies, "true")
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.eventsOn(ctx, "NodeClaim", "MachineUnhealthy")).To(ConsistOf(ContainSubstring("Machine " + c.namespace() + "/" + dead)))
			list := &clusterv1.MachineList{}
			g.Expect(c.management.List(ctx, list, client.InNamespace(c.namespace()), inPool)).To(Succeed())
			g.Expect(list.Items).To(ConsistOf(HaveField("Name", Not(Equal(dead)))), "the dead machine goes, another one comes")
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		c.waitRunning(t, "web")
	})

	t.Run("When it marks more machines than are replaced at a time, it should hold, say so, and go on when enough have recovered", func(t *testing.T) {
		g := NewWithT(t)
		c.scale(t, "web", 3)
		c.waitRunning(t, "web")
		marked := c.machinesOf(g, t.Context(), "mended")
		g.Expect(marked).To(HaveLen(3))
		// One that dies before its node is initialized hasn't been disrupted when it is replaced.
		g.Eventually(func(g Gomega, ctx context.Context) {
			for _, claim := range c.nodeClaims(g, ctx) {
				g.Expect(claim.StatusConditions().IsTrue(karpv1.ConditionTypeInitialized)).To(BeTrue(), claim.Name)
			}
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		dies := func(machine, value string) {
			c.annotate(g, t.Context(), c.infrastructureOf(g, t.Context(), machine), infrav1.FaultDies, value)
		}
		disrupted := c.watchDisruptions(t)
		for _, machine := range marked {
			dies(machine, "true")
		}
		// They are marked one by one: the first may be replaced before there is a second one.
		kept := func(g Gomega, ctx context.Context) (names []string) {
			for _, claim := range c.nodeClaims(g, ctx) {
				// A node is called like its Machine.
				if slices.Contains(marked, claim.Status.NodeName) && claim.DeletionTimestamp == nil {
					names = append(names, claim.Status.NodeName)
				}
			}
			return names
		}
		var held []string
		g.Eventually(func(g Gomega, ctx context.Context) {
			held = kept(g, ctx)
			events, err := c.eventsOn(ctx, "NodeClaim", "RepairHeld")
			g.Expect(err).NotTo(HaveOccurred())
			// All are marked at once: the one whose replacement has just begun may have such an event, too.
			g.Expect(events).To(And(Or(HaveLen(len(held)), HaveLen(len(held)+1)),
				HaveEach(MatchRegexp("of [34] machines, more than the 1 that are replaced at a time"))), "a fourth is there while the first is replaced")
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		g.Expect(len(held)).To(BeNumerically(">=", 2), "at most one is replaced: %v", held)
		// Nothing to wait for: what must not happen is looked for during what a replacement takes to begin.
		g.Consistently(kept).WithContext(t.Context()).WithTimeout(5 * time.Second).WithPolling(interval).Should(ConsistOf(held))

		dead, recovered := held[0], held[1:]
		for _, machine := range marked {
			if machine != dead {
				dies(machine, "false")
			}
		}
		g.Eventually(kept).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(ConsistOf(recovered))
		dies(dead, "false") // a minute sooner its pods end, and all has been decided
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.machinesOf(g, ctx, "mended")).To(And(HaveLen(3), ContainElements(recovered), Not(ContainElement(dead))))
			c.expectOneEach(g, ctx)
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		c.waitRunning(t, "web")
		g.Expect(kept(g, t.Context())).To(ConsistOf(recovered))
		_, ever := disrupted()
		g.Expect(ever).To(ContainElement(dead))
		g.Expect(ever).NotTo(ContainElement(BeElementOf(recovered)), "not for a moment")
	})
}
