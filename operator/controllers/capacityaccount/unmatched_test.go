// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
)

// unmatched has a Karpenter report pools and commitments that none of its instance types matches.
func (k *karpenter) unmatched(names ...string) {
	k.Helper()
	lease := k.lease()
	before := lease.DeepCopy()
	lease.Status.Unmatched = names
	k.Expect(clusters.Management.Client.Status().Patch(k.Context(), lease, client.MergeFrom(before))).To(Succeed())
}

func TestUnmatched(t *testing.T) {
	f := newFixture(t, "unmatched", "blue", "green")
	f.change(func(spec *autonodev1alpha1.CapacityAccountSpec) {
		amounts := autonodev1alpha1.CapacityAmounts{"cpu": scalar.Text("8"), "gpus": scalar.Text("8")}
		spec.Quotas = []autonodev1alpha1.CapacityQuota{
			{Name: "typo", Selector: autonodev1alpha1.CapacitySelector{InstanceTypes: []string{"p5.48xlagre"}}, Limits: amounts},
			{Name: "general", Limits: amounts},
		}
		spec.Commitments = []autonodev1alpha1.CapacityCommitment{{Name: "plan", HourlySpend: "1", DiscountPercent: ptr.To(scalar.Text("20"))}}
	})
	f.settle()
	blue, green := f.karpenters["blue"], f.karpenters["green"]
	report := []string{"commitment/plan", "quota/general/gpus", "quota/typo/cpu", "quota/typo/gpus", reserved}
	fields := func() (fields []string) {
		f.reconcile()
		f.read()
		for _, entry := range f.account.Status.Unusable {
			fields = append(fields, entry.Field)
		}
		return fields
	}
	later := func() { f.clock.SetTime(f.clock.Now().Add(idle)) }
	t.Run("When one member matches what the other doesn't, it should report nothing", func(t *testing.T) {
		g := NewWithT(t)
		blue.unmatched(report...)
		fields()
		later()
		g.Expect(fields()).To(BeEmpty())
	})
	t.Run("When no member matches entries for a minute, it should report these, and not before", func(t *testing.T) {
		g := NewWithT(t)
		green.unmatched(append(report, "quota/unknown/cpu")...)
		g.Expect(fields()).To(BeEmpty())
		later()
		g.Expect(fields()).To(ConsistOf("reservations[cr-1]", "quotas[typo].selector", "quotas[general].limits", "commitments[plan]"))
		g.Expect(f.condition(autonodev1alpha1.EntriesUsable)).To(And(HaveField("Reason", autonodev1alpha1.SomeUnusableReason),
			HaveField("Message", ContainSubstring("no InstanceTypeCatalog of a member offers instance type m5.large in zone a with this reservation"))))
	})
	t.Run("When a member matches one after all, it should not report that any more", func(t *testing.T) {
		g := NewWithT(t)
		green.unmatched("quota/typo/cpu", "quota/typo/gpus")
		g.Expect(fields()).To(ConsistOf("quotas[typo].selector"))
	})
}
