// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
)

func TestHostileMember(t *testing.T) {
	t.Run("When a Karpenter reports more than there is, others should have the free machines, and a condition should name it", func(t *testing.T) {
		f := newFixture(t, "liar", "blue", "green")
		blue, green := f.karpenters["blue"], f.karpenters["green"]
		f.settle()
		delete(f.karpenters, "green") // it reports nothing else from now on
		green.report(func(status *autonodev1alpha1.CapacityLeaseStatus) {
			status.AcknowledgedSequence = green.lease().Spec.Sequence
			status.Reserved = []autonodev1alpha1.PoolAmount{{Pool: reserved, Amount: 1 << 40}}
		})
		blue.want(2)
		f.settle()
		f.Expect(blue.machines()).To(Equal(2))
		f.settleAfter(silent)
		f.Expect(f.condition(autonodev1alpha1.MembersGranted)).To(
			is(metav1.ConditionFalse, autonodev1alpha1.ReportExceedsGrantReason, "liar/green "+reserved))
	})
	t.Run("When a Machine says that it takes more than its cluster may have, others should have the rest", func(t *testing.T) {
		f := newFixture(t, "liar-size", "blue", "green")
		blue, green := f.karpenters["blue"], f.karpenters["green"]
		f.change(func(spec *autonodev1alpha1.CapacityAccountSpec) {
			spec.Quotas = []autonodev1alpha1.CapacityQuota{{Name: "all", Limits: autonodev1alpha1.CapacityAmounts{"cpu": scalar.Text("100")}}}
			spec.Members[0].Limits = autonodev1alpha1.CapacityAmounts{"cpu": scalar.Text("40")}
		})
		f.settle()
		f.create(green.machine("m-liar", "", capacity.Machine{VCPUs: 1 << 46}))
		blue.want(2)
		f.settle()
		f.Expect(blue.machines()).To(Equal(2))
	})
}
