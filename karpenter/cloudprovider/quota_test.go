// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// exceeded is that a machine of the instance type c2-small has exceeded the quota of its family.
func (f *fixture) exceeded() offering.ClosedQuota {
	f.t.Helper()
	quota := offering.Quota{QuotaName: capacity.QuotaName{Name: "on-demand c2"}}
	return f.unavailable.MarkExceeded(offering.Key{InstanceType: "c2-small", Zone: "a", CapacityType: "on-demand"}, quota, -1, "QuotaExceeded")
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
		f.Expect(f.refused("none", small)).To(MatchError(MatchRegexp(`; quota "on-demand c2" is exhausted, until \d\d:\d\d:\d\d UTC$`)))
	})
}
