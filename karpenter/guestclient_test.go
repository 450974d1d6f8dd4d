// SPDX-License-Identifier: Apache-2.0

package karpenter

import (
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/core/leadership"
)

// What package core keeps Karpenter core from, it is kept from by the client that it gets.
func TestGuestClient(t *testing.T) {
	setUp := func(g Gomega) client.Client {
		scheme := runtime.NewScheme()
		g.Expect(corev1.AddToScheme(scheme)).To(Succeed())
		scheme.AddKnownTypes(schema.GroupVersion{Group: "karpenter.sh", Version: "v1"}, &karpv1.NodeClaim{})
		guest := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", Labels: map[string]string{corev1.LabelTopologyZone: "eu-1a"}}},
		).Build()
		return guestClient(guest, func() bool { return true }, func(_, key string) bool { return key == "storage" })
	}
	claim := func() *karpv1.NodeClaim {
		nodeClaim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "general-1", Labels: map[string]string{"storage": "8131"}}}
		nodeClaim.Spec.NodeClassRef = &karpv1.NodeClassReference{Name: "default"}
		nodeClaim.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{{Key: "storage", Operator: corev1.NodeSelectorOpExists}}
		return nodeClaim
	}
	t.Run("When it creates a NodeClaim with a value of its own for a template's label, the NodeClaim should not have it", func(t *testing.T) {
		g := NewWithT(t)
		guest, nodeClaim := setUp(g), claim()
		g.Expect(guest.Create(t.Context(), nodeClaim)).To(Succeed())
		g.Expect(nodeClaim.Labels).NotTo(HaveKey("storage"))
	})
	t.Run("When it registers a node whose zone is known, as of none, the node should keep its zone", func(t *testing.T) {
		g := NewWithT(t)
		guest, node := setUp(g), &corev1.Node{}
		g.Expect(guest.Get(t.Context(), client.ObjectKey{Name: "one"}, node)).To(Succeed())
		before := node.DeepCopy()
		node.Labels[corev1.LabelTopologyZone] = "default"
		g.Expect(guest.Patch(t.Context(), node, client.MergeFrom(before))).To(Succeed())
		g.Expect(node.Labels).To(HaveKeyWithValue(corev1.LabelTopologyZone, "eu-1a"))
	})
	t.Run("When it deletes a NodeClaim while the management cluster is away, it should be denied", func(t *testing.T) {
		g := NewWithT(t)
		guest, nodeClaim := setUp(g), claim()
		g.Expect(guest.Create(t.Context(), nodeClaim)).To(Succeed())
		g.Expect(errors.Is(guest.Delete(t.Context(), nodeClaim), leadership.ErrSuspended)).To(BeTrue())
	})
}
