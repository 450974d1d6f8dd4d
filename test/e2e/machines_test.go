// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// TestMachines: a fault of one machine affects no other. A slow machine delays no other node. A node that was deleted without
// its machine is replaced, and none stays behind a machine that had no provider ID. Cluster API drains a machine that a
// person deletes, by its own rules, before it is replaced.
func TestMachines(t *testing.T) {
	t.Parallel()
	c := acquireCluster(t, indigo)
	g := NewWithT(t)
	c.endsSettled(t, initialRelease, c.takeInventory(g, t.Context()))
	c.fault(t, "c8-xlarge", infrav1.FaultLateProviderID, "true")
	// One offering, so that no other is launched beside it: that is TestSlowLaunch's.
	c.nodePool(t, "slow", require(corev1.LabelInstanceTypeStable, "c8-xlarge"), require(corev1.LabelTopologyZone, "a"),
		require(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeOnDemand))
	c.workload(t, "patient", 1, "5", onPool("slow"))
	var slow []string
	g.Eventually(func(g Gomega, ctx context.Context) {
		slow = c.machinesOf(g, ctx, "slow")
		g.Expect(slow).To(HaveLen(1))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())

	t.Run("When a machine takes its time, other nodes should come, drift and be consolidated meanwhile", func(t *testing.T) {
		g := NewWithT(t)
		pool := c.nodePool(t, "quick", require(corev1.LabelInstanceTypeStable, "c2-small"))
		c.workload(t, "web", 2, "100m", apart, onPool("quick"))
		c.waitRunning(t, "web")

		original := pool.DeepCopy()
		pool.Spec.Template.Labels = map[string]string{"team": "web"}
		g.Expect(c.guest.Patch(t.Context(), pool, client.MergeFrom(original))).To(Succeed())
		g.Eventually(func(g Gomega, ctx context.Context) {
			nodes := c.nodesOf(g, ctx, "quick")
			g.Expect(nodes).To(HaveLen(2))
			g.Expect(nodes).To(HaveEach(HaveField("Labels", HaveKeyWithValue("team", "web"))))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())

		c.scale(t, "web", 1)
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.nodesOf(g, ctx, "quick")).To(HaveLen(1))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		c.waitRunning(t, "web")
		g.Expect(c.machinesOf(g, t.Context(), "slow")).To(Equal(slow), "it still waits for the same machine")
		waiting := &clusterv1.Machine{}
		g.Expect(c.management.Get(t.Context(), client.ObjectKey{Namespace: c.namespace(), Name: slow[0]}, waiting)).To(Succeed())
		g.Expect(waiting.Spec.ProviderID).To(BeEmpty(), "the fault hit it: it has a Node and no provider ID")
	})

	t.Run("When the machine is there at last, it should be used, and have been the only one", func(t *testing.T) {
		c.fault(t, "c8-xlarge", infrav1.FaultLateProviderID, "false")
		g := NewWithT(t)
		c.waitRunning(t, "patient")
		g.Expect(c.machinesOf(g, t.Context(), "slow")).To(Equal(slow))
	})

	// kubernetes-sigs/cluster-api#7237
	t.Run("When nothing needs a machine that has joined and has no provider ID yet, its Node should go with it", func(t *testing.T) {
		g := NewWithT(t)
		c.fault(t, "c8-xlarge", infrav1.FaultLateProviderID, "true")
		c.workload(t, "brief", 1, "5", onPool("slow"))
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.nodesOf(g, ctx, "slow")).To(ContainElement(HaveField("Labels", Not(HaveKey(karpv1.NodeRegisteredLabelKey)))))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		c.scale(t, "brief", 0)
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.eventsOn(ctx, "NodeClaim", "NotNeeded")).To(ContainElement(ContainSubstring("Karpenter hasn't registered its node")))
			g.Expect(c.machinesOf(g, ctx, "slow")).To(Equal(slow))
			g.Expect(c.nodesOf(g, ctx, "slow")).To(ConsistOf(HaveField("Name", slow[0])))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	})

	// kubernetes-sigs/karpenter#1392, #2072
	t.Run("When a person deletes a Node past Karpenter's finalizer, another node should take its place", func(t *testing.T) {
		g := NewWithT(t)
		nodes := c.nodesOf(g, t.Context(), "quick")
		g.Expect(nodes).To(HaveLen(1))
		bare := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))
		g.Expect(c.guest.Patch(t.Context(), &nodes[0], bare)).To(Succeed())
		g.Expect(c.guest.Delete(t.Context(), &nodes[0])).To(Succeed())
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.eventsOn(ctx, "NodeClaim", "NodeDeleted")).To(ContainElement(ContainSubstring(nodes[0].Name)))
			g.Expect(c.machinesOf(g, ctx, "quick")).To(ConsistOf(Not(Equal(nodes[0].Name))))
			g.Expect(c.nodesOf(g, ctx, "quick")).To(ConsistOf(HaveField("Name", Not(Equal(nodes[0].Name)))))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		c.waitRunning(t, "web")
	})

	t.Run("When a person deletes a Machine, Cluster API should drain it by the workload's rules, and another node should take its place", func(t *testing.T) {
		g := NewWithT(t)
		guard := c.disruptionBudget(t, "web", policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(1))})
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.guest.Get(ctx, client.ObjectKeyFromObject(guard), guard)).To(Succeed())
			g.Expect(guard.Status.ExpectedPods).To(BeEquivalentTo(1))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		old := c.machinesOf(g, t.Context(), "quick")
		g.Expect(old).To(HaveLen(1))
		machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace(), Name: old[0]}}
		g.Expect(c.management.Delete(t.Context(), machine)).To(Succeed())

		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.management.Get(ctx, client.ObjectKeyFromObject(machine), machine)).To(Succeed())
			g.Expect(machine.Status.Conditions).To(ContainElement(And(
				HaveField("Type", clusterv1.MachineDeletingCondition), HaveField("Status", metav1.ConditionTrue),
				HaveField("Reason", clusterv1.MachineDeletingDrainingNodeReason), HaveField("Message", ContainSubstring("web")),
			)))
			g.Expect(c.eventsOn(ctx, "NodeClaim", "MachineDeleted")).To(ContainElement(ContainSubstring(old[0])))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		c.waitRunning(t, "web")

		g.Expect(c.guest.Delete(t.Context(), guard)).To(Succeed())
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.machinesOf(g, ctx, "quick")).To(ConsistOf(Not(Equal(old[0]))))
			c.expectOneEach(g, ctx)
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		c.waitRunning(t, "web")
	})
}

// machinesOf names the Machines of a NodePool.
func (c *cluster) machinesOf(g Gomega, ctx context.Context, pool string) []string {
	list := &clusterv1.MachineList{}
	g.Expect(c.management.List(ctx, list, client.InNamespace(c.namespace()), client.MatchingLabels{karpv1.NodePoolLabelKey: pool})).To(Succeed())
	names := make([]string, 0, len(list.Items))
	for _, machine := range list.Items {
		names = append(names, machine.Name)
	}
	return names
}

// infrastructureOf names the infrastructure machine of a Machine.
func (c *cluster) infrastructureOf(g Gomega, ctx context.Context, machine string) *infrav1.KwokMachine {
	m := &clusterv1.Machine{}
	g.Expect(c.management.Get(ctx, client.ObjectKey{Namespace: c.namespace(), Name: machine}, m)).To(Succeed())
	return &infrav1.KwokMachine{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace(), Name: m.Spec.InfrastructureRef.Name}}
}

// nodesOf lists the nodes of a NodePool.
func (c *cluster) nodesOf(g Gomega, ctx context.Context, pool string) []corev1.Node {
	list := &corev1.NodeList{}
	g.Expect(c.guest.List(ctx, list, client.MatchingLabels{karpv1.NodePoolLabelKey: pool})).To(Succeed())
	return list.Items
}
