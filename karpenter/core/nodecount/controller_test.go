// SPDX-License-Identifier: Apache-2.0

package nodecount_test

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/state"

	"github.com/autonode-io/autonode/karpenter/core/nodecount"
)

func TestReconcile(t *testing.T) {
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
	reconciled := func(g Gomega, nodes *state.NodePoolState, existing ...client.Object) {
		guest := fake.NewClientBuilder().WithObjects(existing...).Build()
		_, err := nodecount.New(nodecount.Config{Guest: guest, Nodes: nodes}).Reconcile(t.Context(), nodecount.Gone{NodePool: "static", NodeClaim: "gone"})
		g.Expect(err).NotTo(HaveOccurred())
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
