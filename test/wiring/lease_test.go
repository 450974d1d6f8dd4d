// SPDX-License-Identifier: Apache-2.0

package wiring_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
)

// isLeased gives Karpenter a CapacityLease without room for what a pod needs, and then one with room, as an operator does.
func (w *world) isLeased(t *testing.T) {
	g := NewWithT(t)
	const pool, machine, most = "quota/all/cpu", 4000, 1_000_000
	lease := &autonodev1alpha1.CapacityLease{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: autonodev1alpha1.LeaseName}}
	g.Expect(w.Admin.Create(t.Context(), lease)).To(Succeed())
	grant := func(sequence, amount int64) {
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(w.Admin.Get(ctx, client.ObjectKeyFromObject(lease), lease)).To(Succeed())
			lease.Spec = autonodev1alpha1.CapacityLeaseSpec{
				Account: &autonodev1alpha1.CapacityAccountReference{Name: "shared", UID: "account-1"}, Sequence: sequence,
				Pools: []autonodev1alpha1.LeasedPool{{Name: pool, Resource: autonodev1alpha1.PoolVCPUs, Limit: amount, Granted: amount, Available: amount, Attainable: most}},
			}
			g.Expect(w.Admin.Update(ctx, lease)).To(Succeed())
		}).WithContext(t.Context()).WithPolling(poll).Should(Succeed())
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(w.Admin.Get(ctx, client.ObjectKeyFromObject(lease), lease)).To(Succeed())
			g.Expect(lease.Status.AcknowledgedSequence).To(Equal(sequence))
		}).WithContext(t.Context()).WithPolling(poll).Should(Succeed())
	}
	grant(1, 1)
	before := w.claims(g, t.Context())
	w.pod(t, "short", "example.com/of", "pool")
	g.Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(w.Admin.Get(ctx, client.ObjectKeyFromObject(lease), lease)).To(Succeed())
		g.Expect(lease.Status.Requests).To(ConsistOf(autonodev1alpha1.CapacityRequest{
			Charges: []autonodev1alpha1.PoolAmount{{Pool: pool, Amount: machine}}, Count: 1,
		}))
	}).WithContext(t.Context()).WithPolling(poll).Should(Succeed())
	g.Expect(w.claims(g, t.Context())).To(HaveLen(len(before)), "no offering has room, so there is no NodeClaim")

	spent := int64(0)
	for _, amount := range lease.Status.Used {
		spent += amount.Amount
	}
	grant(2, spent+machine)
	g.Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(w.claims(g, ctx)).To(HaveLen(len(before) + 1))
		g.Expect(w.Admin.Get(ctx, client.ObjectKeyFromObject(lease), lease)).To(Succeed())
		g.Expect(lease.Status.Requests).To(BeEmpty())
		g.Expect(lease.Status.Used).To(ConsistOf(autonodev1alpha1.PoolAmount{Pool: pool, Amount: spent + machine}))
	}).WithContext(t.Context()).WithPolling(poll).Should(Succeed())
	grant(3, most) // it limits nothing that comes after this
}
