// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/fleet/cost"
	"github.com/autonode-io/autonode/fleet/division"
)

func TestCost(t *testing.T) {
	f := newFixture(t, "spending", "blue", "green")
	blue, green := f.karpenters["blue"], f.karpenters["green"]
	f.Expect(f.Controller.Cost("spending")).To(BeNil(), "nothing was counted yet")
	f.change(func(spec *autonodev1alpha1.CapacityAccountSpec) {
		spec.Commitments = []autonodev1alpha1.CapacityCommitment{
			{Name: "instances", Kind: autonodev1alpha1.CommitmentReservedInstance, InstanceType: "m5.large", Instances: ptr.To[int32](2), Price: "0.1"},
			{Name: "unreadable", Kind: autonodev1alpha1.CommitmentSavingsPlan, HourlySpend: "lots", DiscountPercent: ptr.To(scalar.Text("20"))},
		}
	})
	blue.want(3)
	f.settle()
	green.want(1)
	f.settle()

	t.Run("When clusters share a commitment, each should cost its part, and the commitment should say what is used", func(t *testing.T) {
		g := NewWithT(t)
		report := f.Controller.Cost("spending")
		// Four at 0.10 each, of which two are committed at no discount.
		g.Expect(report.Total).To(And(HaveField("Machines", int64(4)), HaveField("Paid", BeNumerically("~", 0.4, 1e-9)), HaveField("Committed", BeNumerically("~", 0.2, 1e-9))))
		g.Expect(report.Rows).To(ConsistOf(
			And(HaveField("Cluster", "spending/blue"), HaveField("Committed", BeNumerically("~", 0.15, 1e-9))),
			And(HaveField("Cluster", "spending/green"), HaveField("Committed", BeNumerically("~", 0.05, 1e-9))),
		))
		g.Expect(report.Commitments).To(ConsistOf(And(HaveField("Name", "instances"), HaveField("Used", 2.0), HaveField("Unused", 0.0))))
		g.Expect(report.Reservations).To(ConsistOf(And(HaveField("ID", "cr-1"), HaveField("Used", int64(4)), HaveField("Unused", int64(6)))))
	})
	t.Run("When a reservation has expired, the report should say so", func(t *testing.T) {
		g := NewWithT(t)
		f.change(func(spec *autonodev1alpha1.CapacityAccountSpec) {
			spec.Reservations[0].Expires = ptr.To(scalar.NewTime(f.clock.Now()))
		})
		f.reconcile()
		g.Expect(f.Controller.Cost("spending").Reservations).To(ConsistOf(HaveField("Expired", true)))
	})
}

func TestCounted(t *testing.T) {
	t.Run("When there is a commitment, it should count the cluster's machines that it may cover, by what it distinguishes", func(t *testing.T) {
		g := NewWithT(t)
		machines := func(cluster, instanceType, capacityType, reservation string, count int64) cost.Machines {
			return cost.Machines{Cluster: cluster, Count: count, Priced: capacity.Priced{Price: 0.1, Machine: capacity.Machine{Offering: capacity.Offering{
				InstanceType: instanceType, Zone: "a", CapacityType: capacityType, Reservation: reservation,
			}}}}
		}
		r := &reconciliation{costs: []cost.Machines{
			machines("blue", "m5.large", "on-demand", "", 2), machines("blue", "m5.large", "on-demand", "", 1), machines("blue", "m5.large", "spot", "", 4),
			machines("blue", "m5.large", "reserved", "cr-1", 4), machines("blue", "c5.large", "on-demand", "", 4), machines("green", "m5.large", "on-demand", "", 4),
		}}
		committed := func(instanceType string) *commitments {
			return &commitments{Report: cost.Of(nil, []division.Commitment{{Name: "ri", Kind: division.ReservedInstance, InstanceType: instanceType, Instances: 9}}, nil)}
		}
		g.Expect(r.counted("blue", committed("m5.large"))).To(Equal([]autonodev1alpha1.CountedMachines{{InstanceType: "m5.large", CapacityType: "on-demand", Count: 3}}))
		g.Expect(r.counted("blue", committed("p5.48xlarge"))).To(BeEmpty())
	})
}

func TestShare(t *testing.T) {
	for _, tc := range []struct {
		name            string
		unused, machine float64
		want            []float64
	}{
		{"When less than a machine for each is left, it should be one cluster's", 1, 1, []float64{0, 1, 0}},
		{"When more is left, each should have whole machines", 7.5, 1, []float64{2, 3.5, 2}},
		{"When nothing shows what a machine uses, each should have as much", 3, 0, []float64{1, 1, 1}},
		{"When nothing is left, none should have any", 0, 1, []float64{0, 0, 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &commitments{clusters: []string{"blue", "green", "red"}, turn: 1}
			for at, want := range tc.want {
				NewWithT(t).Expect(c.share(tc.unused, tc.machine, at)).To(BeNumerically("~", want, 1e-9))
			}
		})
	}
}
