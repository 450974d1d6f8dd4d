// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	accounts "github.com/autonode-io/autonode/api/v1alpha1"
)

// fleet is what shares the account of TestFleetCapacity. Its steps are TestFleetCapacity's.
type fleet struct {
	clusters   []*cluster
	management client.Client
	account    *accounts.CapacityAccount
}

// change changes the account.
func (f *fleet) change(t *testing.T, change func(*accounts.CapacityAccountSpec)) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		found := f.found(g, ctx)
		before := found.DeepCopy()
		change(&found.Spec)
		g.Expect(f.management.Patch(ctx, found, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))).To(Succeed())
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

func (f *fleet) found(g Gomega, ctx context.Context) *accounts.CapacityAccount {
	found := &accounts.CapacityAccount{}
	g.Expect(f.management.Get(ctx, client.ObjectKeyFromObject(f.account), found)).To(Succeed())
	return found
}

func (f *fleet) lease(g Gomega, ctx context.Context, c *cluster) *accounts.CapacityLease {
	lease := &accounts.CapacityLease{}
	g.Expect(f.management.Get(ctx, client.ObjectKey{Namespace: c.namespace(), Name: accounts.LeaseName}, lease)).To(Succeed())
	return lease
}

// machines counts those of all clusters.
func (f *fleet) machines(g Gomega, ctx context.Context) (count int) {
	for _, c := range f.clusters {
		count += len(c.machines(g, ctx))
	}
	return count
}

// lowered lowers the quota below what is used, and raises it again.
func (f *fleet) lowered(t *testing.T) {
	g := NewWithT(t)
	before := f.machines(g, t.Context())
	limit := func(cpu int32) {
		f.change(t, func(spec *accounts.CapacityAccountSpec) { spec.Quotas[0].Limits["cpu"] = intstr.FromInt32(cpu) })
	}
	former := f.account.Spec.Quotas[0].Limits["cpu"]
	limit(16)
	g.Eventually(func(g Gomega, ctx context.Context) {
		ready := meta.FindStatusCondition(f.found(g, ctx).Status.Conditions, accounts.Ready)
		g.Expect(ready).To(HaveValue(And(HaveField("Status", metav1.ConditionTrue), HaveField("Reason", accounts.OverLimitReason), HaveField("Message", ContainSubstring("quota/k-family/cpu")))))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	g.Expect(f.machines(g, t.Context())).To(Equal(before))
	limit(former.IntVal)
	g.Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(meta.FindStatusCondition(f.found(g, ctx).Status.Conditions, accounts.Ready)).To(HaveValue(HaveField("Reason", accounts.AsExpectedReason)))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	g.Expect(f.machines(g, t.Context())).To(Equal(before))
}

// deleted deletes the account while machines use it, and releases its clusters.
func (f *fleet) deleted(t *testing.T) {
	g := NewWithT(t)
	before := f.machines(g, t.Context())
	// Amounts that a cluster doesn't use return to the account meanwhile, as they do without a deletion.
	granted := func(g Gomega, ctx context.Context) (all []accounts.CapacityLeaseSpec) {
		for _, c := range f.clusters {
			spec := accounts.CapacityLeaseSpec{Account: f.lease(g, ctx, c).Spec.Account}
			for _, pool := range f.lease(g, ctx, c).Spec.Pools {
				pool.Amount, pool.Granted, pool.UpTo = 0, 0, 0
				spec.Pools = append(spec.Pools, pool)
			}
			all = append(all, spec)
		}
		return all
	}
	leases := granted(g, t.Context())
	g.Expect(f.management.Delete(t.Context(), f.account.DeepCopy())).To(Succeed())
	g.Eventually(func(g Gomega, ctx context.Context) {
		g.Expect(meta.FindStatusCondition(f.found(g, ctx).Status.Conditions, accounts.Ready)).To(HaveValue(And(
			HaveField("Status", metav1.ConditionFalse), HaveField("Reason", accounts.AccountDeletedReason))))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	g.Expect(granted(g, t.Context())).To(Equal(leases))
	g.Expect(f.machines(g, t.Context())).To(Equal(before))
	f.change(t, func(spec *accounts.CapacityAccountSpec) { spec.Members = nil })
	g.Eventually(func(g Gomega, ctx context.Context) {
		for _, c := range f.clusters {
			g.Expect(f.lease(g, ctx, c).Spec).To(And(HaveField("Account", BeNil()), HaveField("Pools", BeEmpty())))
		}
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	g.Expect(f.machines(g, t.Context())).To(Equal(before))
}
