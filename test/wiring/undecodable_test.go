// SPDX-License-Identifier: Apache-2.0

package wiring_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
)

// undecodable are objects that the API server admits and Go can't decode.
type undecodable struct {
	// suffix isn't one of Go's: it can't be parsed. exponent would be parsed for half an hour.
	suffix, exponent *unstructured.Unstructured
	machine          *unstructured.Unstructured
	claim            *karpv1.NodeClaim
}

// makeUndecodable makes NodePools that Karpenter would prefer to the world's, and the Machine of a NodeClaim.
func (w *world) makeUndecodable(t *testing.T) *undecodable {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	like := &karpv1.NodePool{}
	g.Expect(w.Admin.Get(ctx, client.ObjectKey{Name: poolName}, like)).To(Succeed())
	pool := func(name, limit string) *unstructured.Unstructured {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&karpv1.NodePool{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: *like.Spec.DeepCopy(),
		})
		g.Expect(err).NotTo(HaveOccurred())
		object := &unstructured.Unstructured{Object: content}
		object.SetGroupVersionKind(like.GroupVersionKind())
		object.SetAPIVersion("karpenter.sh/v1")
		object.SetKind("NodePool")
		delete(object.Object, "status")
		g.Expect(unstructured.SetNestedField(object.Object, int64(100), "spec", "weight")).To(Succeed())
		g.Expect(unstructured.SetNestedField(object.Object, map[string]any{"cpu": limit}, "spec", "limits")).To(Succeed())
		g.Expect(w.Admin.Create(ctx, object)).To(Succeed())
		return object
	}
	u := &undecodable{suffix: pool("suffix", "1e1.5"), exponent: pool("exponent", "1e-999999999"), machine: &unstructured.Unstructured{}}
	u.claim = w.NodeClaim(ctx, "undecodable")
	made, err := w.Machines(nil).Create(ctx, w.Plan(u.claim))
	g.Expect(err).NotTo(HaveOccurred())
	u.machine.SetGroupVersionKind(clusterv1.GroupVersion.WithKind("Machine"))
	g.Expect(w.Admin.Get(ctx, client.ObjectKeyFromObject(made), u.machine)).To(Succeed())
	g.Expect(unstructured.SetNestedField(u.machine.Object, "2026-12-01t06:00:00z", "status", "lastUpdated")).To(Succeed())
	g.Expect(w.Admin.Status().Update(ctx, u.machine)).To(Succeed())
	return u
}

// holdsUndecodable follows what Karpenter, which has started beside them, makes of the objects.
func (w *world) holdsUndecodable(t *testing.T, u *undecodable) {
	g := NewWithT(t)
	const metric = "karpenter_clusterapi_undecodable_objects"
	eventually := func(what func(g Gomega, ctx context.Context)) {
		t.Helper()
		g.Eventually(what).WithContext(t.Context()).WithPolling(poll).Should(Succeed())
	}
	for name, field := range map[string]string{"suffix": "spec.limits.cpu", "exponent": "spec.limits.cpu", u.claim.Name: "status.lastUpdated"} {
		eventually(func(g Gomega, ctx context.Context) {
			list := &corev1.EventList{}
			g.Expect(w.Admin.List(ctx, list)).To(Succeed())
			var notes []string
			for _, event := range list.Items {
				if event.InvolvedObject.Name == name && event.Reason == v1beta1.UndecodableReason {
					notes = append(notes, event.Message)
				}
			}
			g.Expect(notes).To(ConsistOf(ContainSubstring(field)), "events about %s", name)
		})
	}
	eventually(func(g Gomega, _ context.Context) {
		g.Expect(series(g, metric, "kind")).To(Equal(map[string]float64{"NodePool": 2, "Machine": 1}))
	})
	for _, pool := range []*unstructured.Unstructured{u.suffix, u.exponent} {
		list := &karpv1.NodeClaimList{}
		g.Expect(w.Admin.List(t.Context(), list, client.MatchingLabels{karpv1.NodePoolLabelKey: pool.GetName()})).To(Succeed())
		g.Expect(list.Items).To(BeEmpty(), "its limit isn't known")
		g.Expect(w.Admin.Get(t.Context(), client.ObjectKeyFromObject(pool), pool)).To(Succeed())
		g.Expect(pool.GetAnnotations()).NotTo(HaveKey(karpv1.NodePoolHashAnnotationKey), "which would have its nodes replaced")
	}
	g.Expect(w.Admin.Get(t.Context(), client.ObjectKeyFromObject(u.machine), u.machine)).To(Succeed())
	g.Expect(u.machine.GetDeletionTimestamp()).To(BeNil(), "the Machine isn't lost")
	// Whole again, it is a NodePool as any other.
	g.Expect(w.Admin.Patch(t.Context(), u.suffix, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"limits":{"cpu":"0"}}}`)))).To(Succeed())
	eventually(func(g Gomega, ctx context.Context) {
		g.Expect(w.Admin.Get(ctx, client.ObjectKeyFromObject(u.suffix), u.suffix)).To(Succeed())
		g.Expect(u.suffix.GetAnnotations()).To(HaveKey(karpv1.NodePoolHashAnnotationKey))
		g.Expect(u.suffix.GetAnnotations()).NotTo(HaveKey(ContainSubstring("undecodable")))
	})
	for _, object := range []*unstructured.Unstructured{u.suffix, u.exponent} {
		g.Expect(w.Admin.Delete(t.Context(), object)).To(Succeed())
	}
	g.Expect(w.Admin.Status().Patch(t.Context(), u.machine, client.RawPatch("application/merge-patch+json", []byte(`{"status":{"lastUpdated":"2026-12-01T06:00:00Z"}}`)))).To(Succeed())
	eventually(func(g Gomega, _ context.Context) { g.Expect(series(g, metric, "kind")).To(BeEmpty()) })
}
