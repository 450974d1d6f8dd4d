// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
)

func TestUnavailable(t *testing.T) {
	f, elsewhere := newFixture(t, "exhausted", "blue", "green"), newFixture(t, "exhausted-elsewhere", "red")
	f.settle()
	elsewhere.settle()
	blue, green, red := f.karpenters["blue"], f.karpenters["green"], elsewhere.karpenters["red"]
	// Hints are written now and then.
	later := func() {
		for _, each := range []*fixture{f, elsewhere} {
			each.clock.SetTime(each.clock.Now().Add(hints))
			each.reconcile()
		}
	}
	until := f.clock.Now().Add(time.Minute)
	spot := autonodev1alpha1.UnavailableOffering{InstanceType: typeName, Zone: "a", CapacityType: "spot", Reason: "Capacity", Until: scalar.NewTime(until)}

	t.Run("When a cluster finds no capacity, the lease of the account's other cluster alone should say so, and its grant be the same", func(t *testing.T) {
		g := NewWithT(t)
		blue.report(func(status *autonodev1alpha1.CapacityLeaseStatus) {
			status.Unavailable = []autonodev1alpha1.UnavailableOffering{spot}
		})
		later()
		closed := green.lease().Spec.Unavailable
		g.Expect(closed).To(HaveLen(1))
		g.Expect(closed[0].Until.At()).To(BeTemporally("==", until))
		closed[0].Until = spot.Until // the same time in another location
		g.Expect(closed[0]).To(Equal(spot))
		g.Expect(blue.lease().Spec.Unavailable).To(BeEmpty(), "it is its own finding")
		g.Expect(red.lease().Spec.Unavailable).To(BeEmpty(), "it belongs to another account")
		g.Expect(green.lease().Status.AcknowledgedSequence).To(Equal(green.lease().Spec.Sequence))
	})
	t.Run("When that time has come, the lease should say nothing of it any more, though the report is still there", func(t *testing.T) {
		g := NewWithT(t)
		next := f.reconcile()
		g.Expect(f.clock.Now().Add(next)).To(BeTemporally("<=", until.Add(lag)), "it reconciles again by then")
		f.clock.SetTime(until)
		f.reconcile()
		g.Expect(blue.lease().Status.Unavailable).To(HaveLen(1))
		g.Expect(green.lease().Spec.Unavailable).To(BeEmpty())
	})
}

// unmatched has a Karpenter report pools and commitments that none of its instance types matches.
func (k *karpenter) unmatched(names ...string) {
	k.Helper()
	k.report(func(status *autonodev1alpha1.CapacityLeaseStatus) { status.Unmatched = names })
}

func TestUnmatched(t *testing.T) {
	f := newFixture(t, "unmatched", "blue", "green")
	f.change(func(spec *autonodev1alpha1.CapacityAccountSpec) {
		amounts := autonodev1alpha1.CapacityAmounts{"cpu": scalar.Text("8"), "gpus": scalar.Text("8")}
		spec.Quotas = []autonodev1alpha1.CapacityQuota{
			{Name: "typo", Selector: autonodev1alpha1.CapacitySelector{InstanceTypes: []string{"p5.48xlagre"}}, Limits: amounts},
			{Name: "general", Limits: amounts},
		}
		spec.Commitments = []autonodev1alpha1.CapacityCommitment{{Name: "plan", Kind: autonodev1alpha1.CommitmentSavingsPlan, HourlySpend: "1", DiscountPercent: ptr.To(scalar.Text("20"))}}
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
		g.Expect(f.condition(autonodev1alpha1.EntriesUsable)).To(is(metav1.ConditionTrue, autonodev1alpha1.SomeUnusableReason,
			"no InstanceTypeCatalog of a member offers instance type m5.large in zone a with this reservation"))
	})
	t.Run("When a member matches one after all, it should not report that any more", func(t *testing.T) {
		g := NewWithT(t)
		green.unmatched("quota/typo/cpu", "quota/typo/gpus")
		g.Expect(fields()).To(ConsistOf("quotas[typo].selector"))
	})
}
