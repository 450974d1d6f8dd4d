// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
)

func TestRecount(t *testing.T) {
	claim := func(name string) *karpv1.NodeClaim {
		return &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{karpv1.NodePoolLabelKey: "static"}}}
	}
	// counted is a NodePool of two nodes, of which one was deleted, forgotten, and then counted as being deleted.
	counted := func() *state.NodePoolState {
		nodes := state.NewNodePoolState()
		for _, name := range []string{"kept", "gone"} {
			nodes.UpdateNodeClaim(claim(name), false)
		}
		nodes.Cleanup("gone")
		nodes.MarkNodeClaimDeleting("static", "gone")
		return nodes
	}
	// reconciled runs passes over a NodeClaim before and after its deletion, creates the existing objects, and runs the last pass some seconds later.
	reconciled := func(g Gomega, nodes *state.NodePoolState, existing ...client.Object) {
		now, guest := clocktesting.NewFakeClock(time.Unix(0, 0)), fake.NewClientBuilder().WithObjects(claim("gone")).Build()
		recount := Recount(guest, nodes, now)(Registered{Inner: reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			return reconcile.Result{}, nil
		})})
		pass := func() time.Duration {
			result, err := recount.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "gone"}})
			g.Expect(err).NotTo(HaveOccurred())
			return result.RequeueAfter
		}
		_, before, _ := nodes.GetNodeCount("static")
		g.Expect(pass()).To(BeZero())
		g.Expect(guest.Delete(t.Context(), claim("gone"))).To(Succeed())
		g.Expect(pass()).To(Equal(settle))
		_, deleting, _ := nodes.GetNodeCount("static")
		g.Expect(deleting).To(Equal(before), "core's controllers may still have it in hand")
		for _, object := range existing {
			g.Expect(guest.Create(t.Context(), object)).To(Succeed())
		}
		now.Step(settle)
		g.Expect(pass()).To(BeZero())
	}
	t.Run("When a NodeClaim that is gone is counted, it should free its place of the NodePool's limit", func(t *testing.T) {
		g := NewWithT(t)
		nodes := counted()
		g.Expect(nodes.ReserveNodeCount("static", 2, 1)).To(BeZero(), "a NodeClaim that doesn't exist takes a place: core's defect is still there")
		reconciled(g, nodes, claim("kept"))
		g.Expect(nodes.ReserveNodeCount("static", 2, 1)).To(Equal(int64(1)))
		active, deleting, pending := nodes.GetNodeCount("static")
		g.Expect([]int{active, deleting, pending}).To(Equal([]int{1, 0, 0}))
	})
	t.Run("When there is a NodeClaim of the name again, it should stay as it is counted", func(t *testing.T) {
		g := NewWithT(t)
		nodes := counted()
		reconciled(g, nodes, claim("kept"), claim("gone"))
		_, deleting, _ := nodes.GetNodeCount("static")
		g.Expect(deleting).To(Equal(1))
	})
	t.Run("When no node is counted as being deleted, it should change nothing, reservations of the limit included", func(t *testing.T) {
		g := NewWithT(t)
		nodes := state.NewNodePoolState()
		g.Expect(nodes.ReserveNodeCount("static", 2, 1)).To(Equal(int64(1)))
		reconciled(g, nodes)
		g.Expect(nodes.ReserveNodeCount("static", 2, 2)).To(Equal(int64(1)))
	})
}
