// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// exceeded is that a machine of the instance type c2-small has exceeded the quota of its family.
func (f *fixture) exceeded() offering.ClosedQuota {
	f.t.Helper()
	quota := offering.Quota{QuotaName: offering.QuotaName{Name: "on-demand c2"}}
	return f.unavailable.MarkExceeded(offering.Key{InstanceType: "c2-small", Zone: "a", CapacityType: "on-demand"}, offering.Exceeded{Quota: quota, Left: -1, Reason: "QuotaExceeded"})
}

// small is a claim that c2-small meets only.
func small(n *karpv1.NodeClaim) {
	n.Spec.Requirements = append(n.Spec.Requirements, requirement(corev1.LabelInstanceTypeStable, "c2-small"))
}

func TestCreateWithinQuota(t *testing.T) {
	t.Run("When a quota is exhausted, it should launch what that doesn't count, or say which it is", func(t *testing.T) {
		f := newFixture(t)
		f.exceeded()
		_, created := f.launch("other", nil)
		f.Expect(created.Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, "c4-large"))
		f.Expect(f.refused("none", small)).To(MatchError(MatchRegexp(`; quota "on-demand c2" is exhausted, until one launch probes it at \d\d:\d\d:\d\d UTC$`)))
	})
	t.Run("When its back-off has passed, it should launch one machine until it is known how that ends", func(t *testing.T) {
		f := newFixture(t)
		f.clock.SetTime(f.exceeded().Until)
		probe, created := f.launch("probe", small)
		f.Expect(f.refused("waits", small)).To(MatchError(ContainSubstring("NodeClaim " + probe.Name + " probes it")))
		again, err := f.provider.Create(f.ctx, probe)
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(again.Status.ProviderID).To(Equal(created.Status.ProviderID), "it is the same launch")

		// It ends for another reason.
		f.Expect(f.Admin.Delete(f.ctx, f.machine(probe.Name))).To(Succeed())
		f.deleted(probe)
		f.launch("next", small)
	})
	t.Run("When the probe can't be created, the next launch should be one", func(t *testing.T) {
		f := newFixture(t)
		f.clock.SetTime(f.exceeded().Until)
		_, err := f.provider.Create(f.ctx, f.claim("unnamed", func(n *karpv1.NodeClaim) {
			small(n)
			n.UID = types.UID("another")
			n.Name = "not_a_name"
		}))
		f.Expect(err).To(HaveOccurred())
		f.launch("next", small)
	})
	t.Run("When a machine that the quota counts is gone, it should try another early", func(t *testing.T) {
		f := newFixture(t)
		gone, created := f.launch("gone", small)
		f.exceeded()
		f.Expect(f.Admin.Delete(f.ctx, f.machine(gone.Name))).To(Succeed())
		gone.Labels = created.Labels
		gone.Status.ProviderID = created.Status.ProviderID
		f.deleted(gone)
		f.refused("early", small) // it never had an instance
		gone.Status.ProviderID = "cloud://gone"
		f.deleted(gone)
		f.launch("probe", small)
	})
}
