// SPDX-License-Identifier: Apache-2.0

package wiring_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
)

// undecodable is a Machine that the API server admits and Go can't decode.
type undecodable struct {
	machine *unstructured.Unstructured
	claim   *karpv1.NodeClaim
}

// makeUndecodable makes the Machine of a NodeClaim.
func (w *world) makeUndecodable(t *testing.T) *undecodable {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	u := &undecodable{machine: &unstructured.Unstructured{}, claim: w.NodeClaim(ctx, "undecodable")}
	made, err := w.Machines(nil).Create(ctx, w.Plan(u.claim))
	g.Expect(err).NotTo(HaveOccurred())
	u.machine.SetGroupVersionKind(clusterv1.GroupVersion.WithKind("Machine"))
	g.Expect(w.Admin.Get(ctx, client.ObjectKeyFromObject(made), u.machine)).To(Succeed())
	g.Expect(unstructured.SetNestedField(u.machine.Object, "2026-12-01t06:00:00z", "status", "lastUpdated")).To(Succeed())
	g.Expect(w.Admin.Status().Update(ctx, u.machine)).To(Succeed())
	return u
}

// holdsUndecodable checks that a Karpenter that has started beside the Machine reports it and doesn't lose it.
func (w *world) holdsUndecodable(t *testing.T, u *undecodable) {
	g := NewWithT(t)
	const metric = "karpenter_clusterapi_undecodable_objects"
	eventually := func(what func(g Gomega, ctx context.Context)) {
		t.Helper()
		g.Eventually(what).WithContext(t.Context()).WithPolling(poll).Should(Succeed())
	}
	eventually(func(g Gomega, ctx context.Context) {
		list := &corev1.EventList{}
		g.Expect(w.Admin.List(ctx, list)).To(Succeed())
		var notes []string
		for _, event := range list.Items {
			if event.InvolvedObject.Name == u.claim.Name && event.Reason == v1beta1.UndecodableReason {
				notes = append(notes, event.Message)
			}
		}
		g.Expect(notes).To(ConsistOf(ContainSubstring("status.lastUpdated")))
	})
	eventually(func(g Gomega, _ context.Context) {
		g.Expect(series(g, metric, "kind")).To(Equal(map[string]float64{"Machine": 1}))
	})
	g.Expect(w.Admin.Get(t.Context(), client.ObjectKeyFromObject(u.machine), u.machine)).To(Succeed())
	g.Expect(u.machine.GetDeletionTimestamp()).To(BeNil(), "the Machine isn't lost")
	g.Expect(w.Admin.Status().Patch(t.Context(), u.machine, client.RawPatch("application/merge-patch+json", []byte(`{"status":{"lastUpdated":"2026-12-01T06:00:00Z"}}`)))).To(Succeed())
	eventually(func(g Gomega, _ context.Context) { g.Expect(series(g, metric, "kind")).To(BeEmpty()) })
}
