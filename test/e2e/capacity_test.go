// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// backOff is the back-off of an offering after its first failure: see package karpenter/providers/offering.
const backOff = 3 * time.Minute

// TestCapacity: an offering without capacity, or whose machines never join, costs only time. Karpenter launches the next
// cheapest, reports why, and returns to the cheapest when it has capacity again.
func TestCapacity(t *testing.T) {
	t.Parallel()
	c := acquireCluster(t, amber)
	// The test's node class stays until its node has gone, which is after the test.
	c.endsSettled(t, initialRelease, append(c.takeInventory(NewWithT(t), t.Context()), "guest ClusterAPINodeClass impatient"))

	// In zone a, on amd64, c2-small on spot is the cheapest, and c4-large on spot the next.
	inZoneA := []poolOption{
		require(corev1.LabelTopologyZone, "a"), require(corev1.LabelArchStable, "amd64"),
		require(corev1.LabelInstanceTypeStable, "c2-small", "c4-large"), require(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeSpot),
	}
	c.fault(t, "c2-small", infrav1.FaultNoCapacity, "a/spot")
	var failed time.Time
	c.nodePool(t, "frugal", inZoneA...)
	c.workload(t, "web", 1, "500m", onPool("frugal"))

	t.Run("When the cheapest offering has no capacity, it should take the next cheapest and say why", func(t *testing.T) {
		g := NewWithT(t)
		c.waitRunning(t, "web")
		failed = time.Now()
		nodes := c.nodes(g, t.Context())
		g.Expect(nodes).To(HaveLen(1))
		g.Expect(nodes[0].Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, "c4-large"))
		g.Eventually(c.eventsOn).WithContext(t.Context()).WithArguments("NodeClaim", "InsufficientCapacity").WithTimeout(eventually).WithPolling(interval).Should(
			HaveEach(ContainSubstring("no capacity for spot c2-small in zone a: InsufficientInstanceCapacity")))
		g.Expect(c.eventsOn(t.Context(), "NodeClaim", "InsufficientCapacity")).To(HaveLen(1), "no machine is launched again of an offering that failed")
	})

	t.Run("When spot is exhausted in one zone, it should take the same type's spot of another one, without another attempt there", func(t *testing.T) {
		g := NewWithT(t)
		c.nodePool(t, "anywhere", require(corev1.LabelInstanceTypeStable, "c2-small"),
			require(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeSpot, karpv1.CapacityTypeOnDemand))
		c.workload(t, "anywhere", 2, "500m", onPool("anywhere"), apart)
		c.waitRunning(t, "anywhere")
		g.Expect(c.nodesOf(g, t.Context(), "anywhere")).To(And(HaveLen(2), HaveEach(HaveField("Labels", And(
			HaveKeyWithValue(corev1.LabelTopologyZone, Not(Equal("a"))), HaveKeyWithValue(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeSpot))))))
		g.Expect(c.eventsOn(t.Context(), "NodeClaim", "InsufficientCapacity")).To(HaveLen(1))
	})

	t.Run("When a node doesn't join within its node class's deadline, it should replace it", func(t *testing.T) {
		g := NewWithT(t)
		c.fault(t, "c8-xlarge", infrav1.FaultNeverJoins, "true")
		class := c.defaultClass(g, t.Context())
		impatient := &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "impatient"}, Spec: class.Spec}
		impatient.Spec.Deadlines = &v1alpha1.Deadlines{Registration: &scalar.Duration{Duration: time.Minute}}
		g.Expect(c.guest.Create(t.Context(), impatient)).To(Succeed())
		t.Cleanup(func() {
			NewWithT(t).Expect(client.IgnoreNotFound(c.guest.Delete(context.WithoutCancel(t.Context()), impatient))).To(Succeed())
		})
		c.nodePool(t, "impatient", require(corev1.LabelInstanceTypeStable, "c8-xlarge"), func(pool *karpv1.NodePool) {
			pool.Spec.Template.Spec.NodeClassRef.Name = impatient.Name
		})
		c.workload(t, "large", 1, "5", onPool("impatient"))

		// The first machine keeps its fault, the next one has none.
		var first string
		g.Eventually(func(g Gomega, ctx context.Context) {
			machines := &infrav1.KwokMachineList{}
			g.Expect(c.management.List(ctx, machines, client.InNamespace(c.namespace()), client.MatchingLabels{karpv1.NodePoolLabelKey: "impatient"})).To(Succeed())
			g.Expect(machines.Items).To(HaveLen(1))
			first = machines.Items[0].Name // the Machine and the node have the same
			c.annotate(g, ctx, &machines.Items[0], infrav1.FaultNeverJoins, "true")
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		c.fault(t, "c8-xlarge", infrav1.FaultNeverJoins, "false")

		c.waitRunning(t, "large")
		g.Expect(c.eventsOn(t.Context(), "NodeClaim", "RegistrationTimeout")).To(ConsistOf(ContainSubstring("no registered node within 1m0s")))
		for _, node := range c.nodes(g, t.Context()) {
			g.Expect(node.Labels).NotTo(HaveKeyWithValue(corev1.LabelHostname, first))
		}
	})

	t.Run("When a policy of the guest rejects a NodePool's NodeClaims, it should quote it and launch a node of another one", c.rejectedPool)

	t.Run("When the cheapest offering is available again, it should come back to it", func(t *testing.T) {
		g := NewWithT(t)
		c.fault(t, "c2-small", infrav1.FaultNoCapacity, "false")
		// A pod that came before its time is over would get the next cheapest.
		g.Eventually(func() time.Duration { return time.Since(failed) }).WithContext(t.Context()).WithTimeout(eventually).WithPolling(time.Second).
			Should(BeNumerically(">", backOff))
		c.nodePool(t, "again", inZoneA...)
		c.workload(t, "again", 1, "500m", onPool("again"))
		c.waitRunning(t, "again")
		g.Expect(c.nodesOf(g, t.Context(), "again")).To(HaveEach(HaveField("Labels", HaveKeyWithValue(corev1.LabelInstanceTypeStable, "c2-small"))))
	})
}

// fault sets a fault on the machines that are cloned from a template, until the test ends.
func (c *cluster) fault(t *testing.T, template, name, value string) {
	t.Helper()
	object := &infrav1.KwokMachineTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace(), Name: template}}
	c.annotate(NewWithT(t), t.Context(), object, name, value)
	t.Cleanup(func() { c.unannotate(NewWithT(t), context.WithoutCancel(t.Context()), object, name) })
}

func (c *cluster) annotate(g Gomega, ctx context.Context, object client.Object, name, value string) {
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, name, value))
	g.Expect(c.management.Patch(ctx, object, patch)).To(Succeed())
}

func (c *cluster) unannotate(g Gomega, ctx context.Context, object client.Object, name string) {
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, name))
	g.Expect(c.management.Patch(ctx, object, patch)).To(Succeed())
}

// eventsOn returns the messages of the guest's events on objects of a kind, with a reason.
func (c *cluster) eventsOn(ctx context.Context, kind, reason string) ([]string, error) {
	list := &corev1.EventList{}
	if err := c.guest.List(ctx, list); err != nil {
		return nil, err
	}
	var messages []string
	for _, event := range list.Items {
		if event.InvolvedObject.Kind == kind && event.Reason == reason {
			messages = append(messages, event.Message)
		}
	}
	return messages, nil
}
