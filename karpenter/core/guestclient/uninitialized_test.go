// SPDX-License-Identifier: Apache-2.0

package guestclient_test

import (
	"context"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/core/guestclient"
)

func TestUninitialized(t *testing.T) {
	own := corev1.Taint{Key: "team", Value: "web", Effect: corev1.TaintEffectNoSchedule}
	register := func(node *corev1.Node) {
		node.Labels = map[string]string{karpv1.NodeRegisteredLabelKey: "true"}
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&karpv1.UnregisteredNoExecuteTaint) })
	}
	for name, tc := range map[string]struct {
		change func(node *corev1.Node)
		awaits bool
		want   []corev1.Taint
	}{
		"When Karpenter registers a node, it should remove Cluster API's taint and no other": {register, false, []corev1.Taint{own}},
		"When Cluster API still has to write taints, it should keep its taint":               {register, true, []corev1.Taint{clusterv1.NodeUninitializedTaint, own}},
		"When Karpenter isn't ready to register a node yet, it should keep Cluster API's taint": {
			func(node *corev1.Node) { node.Labels = map[string]string{"team": "web"} }, false,
			[]corev1.Taint{karpv1.UnregisteredNoExecuteTaint, clusterv1.NodeUninitializedTaint, own},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			stored := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "one"}}
			stored.Spec.Taints = []corev1.Taint{karpv1.UnregisteredNoExecuteTaint, clusterv1.NodeUninitializedTaint, own}
			guest := ruled(fake.NewClientBuilder().WithObjects(stored).Build(), func(c *guestclient.Config) {
				c.AwaitsTaints = func(context.Context, *corev1.Node) bool { return tc.awaits }
			})
			node := &corev1.Node{}
			g.Expect(guest.Get(t.Context(), client.ObjectKeyFromObject(stored), node)).To(Succeed())
			before := node.DeepCopy()
			tc.change(node)
			g.Expect(guest.Patch(t.Context(), node, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))).To(Succeed())
			after := &corev1.Node{}
			g.Expect(guest.Get(t.Context(), client.ObjectKeyFromObject(stored), after)).To(Succeed())
			g.Expect(after.Spec.Taints).To(Equal(tc.want))
			g.Expect(after.Labels).To(Equal(node.Labels))
		})
	}

	t.Run("When another client has tainted the node meanwhile, it should not undo that", func(t *testing.T) {
		g := NewWithT(t)
		stored := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "one"}}
		stored.Spec.Taints = []corev1.Taint{karpv1.UnregisteredNoExecuteTaint, clusterv1.NodeUninitializedTaint}
		guest := ruled(fake.NewClientBuilder().WithObjects(stored).Build(), func(c *guestclient.Config) {
			c.AwaitsTaints = func(context.Context, *corev1.Node) bool { return false }
		})
		node, other := &corev1.Node{}, &corev1.Node{}
		g.Expect(guest.Get(t.Context(), client.ObjectKeyFromObject(stored), node)).To(Succeed())
		g.Expect(guest.Get(t.Context(), client.ObjectKeyFromObject(stored), other)).To(Succeed())
		other.Spec.Taints = append(other.Spec.Taints, own)
		g.Expect(guest.Update(t.Context(), other)).To(Succeed())
		before := node.DeepCopy()
		register(node)
		err := guest.Patch(t.Context(), node, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
		g.Expect(apierrors.IsConflict(err)).To(BeTrue(), "%v", err)
	})
}
