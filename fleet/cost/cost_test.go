// SPDX-License-Identifier: Apache-2.0

package cost_test

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/fleet/cost"
	"github.com/autonode-io/autonode/fleet/division"
)

var update = flag.Bool("update", false, "write what tests got into testdata")

const rounding = 1e-9

// fleet is worked by hand. Five of m5.xlarge at 0.20 cost 1.00. Two are covered as instances, which cost 40 % less: 0.24 for 0.40. The plan of
// 0.28 covers two more at 30 % less: 0.28 for 0.40. One is paid: 0.20. In all 0.72, of which blue has two fifths and green three.
var fleet = struct {
	machines     []cost.Machines
	commitments  []division.Commitment
	reservations []cost.Reservation
}{
	machines: []cost.Machines{
		machines("clusters/green", "batch", "m5.xlarge", "on-demand", "", 0.20, 0, 3),
		machines("clusters/blue", "general", "m5.xlarge", "on-demand", "", 0.20, 0, 2),
		machines("clusters/blue", "general", "m5.large", "spot", "", 0.03, 0.10, 1),
		machines("clusters/green", "batch", "k4", "reserved", "block-10", 0.010, 0.139, 2),
		machines("clusters/green", "batch", "m5.large", "on-demand", "", 0, 0, 1),
	},
	commitments: []division.Commitment{
		{Name: "plan", Kind: division.SavingsPlan, Selector: division.Selector{CapacityTypes: []string{"on-demand"}}, HourlySpend: 0.28, Discount: 0.30},
		{Name: "instances", Kind: division.ReservedInstance, InstanceType: "m5.xlarge", Instances: 2, Discount: 0.40},
		{Name: "idle", Kind: division.SavingsPlan, Selector: division.Selector{InstanceTypes: []string{"p5.*"}}, HourlySpend: 0.50, Discount: 0.10},
		{Name: "spare", Kind: division.ReservedInstance, InstanceType: "p5.48xlarge", Instances: 3},
	},
	reservations: []cost.Reservation{{ID: "block-10", InstanceType: "k4", Zone: "a", Count: 10, Price: ptr.To(0.010), Prepaid: true}},
}

func machines(cluster, nodePool, instanceType, capacityType, reservation string, list, onDemand float64, count int64) cost.Machines {
	return cost.Machines{Cluster: cluster, NodePool: nodePool, Count: count, Priced: capacity.Priced{
		Machine: capacity.Machine{Offering: capacity.Offering{InstanceType: instanceType, Zone: "a", CapacityType: capacityType, Reservation: reservation}},
		Price:   list, OnDemand: onDemand,
	}}
}

func equal(a, b float64) bool { return math.Abs(a-b) < rounding }

// difference returns in which sums two Sums differ.
func difference(want, got cost.Sums) string {
	return cmp.Diff(want, got, cmp.Comparer(equal))
}

func TestOf(t *testing.T) {
	onDemand := machines("blue", "a", "m5.xlarge", "on-demand", "", 0.20, 0, 1)
	inBlock := machines("blue", "a", "k4", "reserved", "block-10", 0.010, 0.139, 1)
	block := cost.Reservation{ID: "block-10", InstanceType: "k4", Zone: "a", Count: 1, Price: ptr.To(0.010), Prepaid: true}
	plan := division.Commitment{Name: "plan", Kind: division.SavingsPlan, Selector: division.Selector{CapacityTypes: []string{"on-demand"}}, HourlySpend: 0.07, Discount: 0.30}
	anything := division.Commitment{Name: "plan", Kind: division.SavingsPlan, HourlySpend: 0.07, Discount: 0.30}
	for _, tc := range []struct {
		name         string
		machines     []cost.Machines
		commitments  []division.Commitment
		reservations []cost.Reservation
		want         cost.Sums
		wasted       float64
		unknown      bool
	}{
		{name: "When nothing runs, it should waste what is committed", commitments: []division.Commitment{plan}, wasted: 0.07},
		{name: "When nothing is committed, it should pay the list price", machines: []cost.Machines{onDemand}, want: cost.Sums{Machines: 1, OnDemand: 0.20, List: 0.20, Paid: 0.20}},
		// 0.20 on the list takes 0.14 of the plan, which has half of that.
		{
			name: "When a plan covers half, it should pay that at the plan's price and the rest at the list's", machines: []cost.Machines{onDemand},
			commitments: []division.Commitment{plan}, want: cost.Sums{Machines: 1, OnDemand: 0.20, List: 0.20, Paid: 0.17, Committed: 0.07, Saved: cost.Savings{Commitments: 0.03}},
		},
		{
			name: "When a machine is reserved, it should save the difference to the same one on demand", machines: []cost.Machines{inBlock},
			reservations: []cost.Reservation{block}, want: cost.Sums{Machines: 1, OnDemand: 0.139, List: 0.010, Paid: 0.010, Saved: cost.Savings{Reservations: 0.129}},
		},
		{
			name: "When its reservation has expired, it should cost what it does on demand", machines: []cost.Machines{inBlock},
			reservations: []cost.Reservation{{ID: "block-10", InstanceType: "k4", Zone: "a", Count: 10, Expired: true}}, want: cost.Sums{Machines: 1, OnDemand: 0.139, List: 0.139, Paid: 0.139},
		},
		// 0.139 on the list takes 0.0973 of the plan, which has 0.07: 0.07 / 0.0973 of the machine is covered.
		{
			name: "When its reservation has expired, a plan for machines on demand should cover it", machines: []cost.Machines{inBlock}, commitments: []division.Commitment{plan},
			reservations: []cost.Reservation{{ID: "block-10", InstanceType: "k4", Zone: "a", Count: 10, Expired: true}},
			want:         cost.Sums{Machines: 1, OnDemand: 0.139, List: 0.139, Paid: 0.139 - 0.03, Committed: 0.07, Saved: cost.Savings{Commitments: 0.03}},
		},
		{
			name: "When a reservation is in force, a plan for machines on demand should not cover it", machines: []cost.Machines{inBlock}, commitments: []division.Commitment{plan},
			reservations: []cost.Reservation{block}, want: cost.Sums{Machines: 1, OnDemand: 0.139, List: 0.010, Paid: 0.010, Saved: cost.Savings{Reservations: 0.129}}, wasted: 0.07,
		},
		{
			name: "When a reservation is prepaid, a plan for all machines should not cover it", machines: []cost.Machines{inBlock}, commitments: []division.Commitment{anything},
			reservations: []cost.Reservation{block}, want: cost.Sums{Machines: 1, OnDemand: 0.139, List: 0.010, Paid: 0.010, Saved: cost.Savings{Reservations: 0.129}}, wasted: 0.07,
		},
		{
			name:         "When a reservation has no price and no machine, it should say that its waste isn't known",
			reservations: []cost.Reservation{{ID: "block-10", InstanceType: "k4", Zone: "a", Count: 10}}, unknown: true,
		},
		{
			name:        "When committed machines have no price and none runs, it should say that their waste isn't known",
			commitments: []division.Commitment{{Name: "spare", Kind: division.ReservedInstance, InstanceType: "m5.large", Instances: 2, Discount: 0.30}}, unknown: true,
		},
		{
			name: "When a price on demand isn't known, it should not claim a saving", machines: []cost.Machines{machines("blue", "a", "k4", "spot", "", 0.04, 0, 2)},
			want: cost.Sums{Machines: 2, OnDemand: 0.08, List: 0.08, Paid: 0.08},
		},
		{
			name: "When spot is dearer than on demand, it should say that nothing is saved but lost", machines: []cost.Machines{machines("blue", "a", "k4", "spot", "", 0.15, 0.139, 1)},
			want: cost.Sums{Machines: 1, OnDemand: 0.139, List: 0.15, Paid: 0.15, Saved: cost.Savings{Spot: -0.011}},
		},
		{
			name: "When an offering's own price decides, it should bill what the machine costs on demand", machines: []cost.Machines{machines("blue", "a", "k4", "reserved", "block-10", 0, 0.139, 1)},
			want: cost.Sums{Machines: 1, OnDemand: 0.139, List: 0.139, Paid: 0.139},
		},
		{
			name: "When a price isn't known, it should count the machine apart", machines: []cost.Machines{machines("blue", "a", "k4", "on-demand", "", 0, 0, 2)},
			want: cost.Sums{Machines: 2, Unpriced: 2},
		},
		{
			name: "When prices and counts are negative, they should count as nothing", machines: []cost.Machines{machines("blue", "a", "k4", "on-demand", "", -1, -1, -2)}, want: cost.Sums{},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			report := cost.Of(tc.machines, tc.commitments, tc.reservations)
			if diff := difference(tc.want, report.Total); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if !equal(report.Wasted, tc.wasted) {
				t.Errorf("wasted %g, want %g", report.Wasted, tc.wasted)
			}
			unknown := false
			for _, use := range report.Commitments {
				unknown = unknown || use.Wasted == nil
			}
			for _, use := range report.Reservations {
				unknown = unknown || use.Wasted == nil
			}
			if unknown != tc.unknown {
				t.Errorf("waste is unknown: %t, want %t", unknown, tc.unknown)
			}
		})
	}
}

func TestExpired(t *testing.T) {
	t.Run("When a reservation has expired, its machines should be listed as those on demand, and still be the reservation's", func(t *testing.T) {
		report := cost.Of([]cost.Machines{machines("blue", "a", "k4", "reserved", "block-10", 0.010, 0.139, 2), machines("blue", "a", "k4", "on-demand", "", 0.139, 0, 1)},
			nil, []cost.Reservation{{ID: "block-10", InstanceType: "k4", Zone: "a", Count: 10, Expired: true}})
		if len(report.Rows) != 1 || report.Rows[0].CapacityType != "on-demand" || report.Rows[0].Machines != 3 || !equal(report.Rows[0].Paid, 3*0.139) {
			t.Errorf("rows: %+v", report.Rows)
		}
		if use := report.Reservations[0]; use.Used != 2 || use.Unused != 8 {
			t.Errorf("use: %+v", use)
		}
	})
}

// text shows all of a report.
func text(r *cost.Report) string {
	var out strings.Builder
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "CLUSTER\tNODEPOOL\tTYPE\tCAPACITY\tMACHINES\tUNPRICED\tON DEMAND\tLIST\tPAID\tCOMMITTED\tBY SPOT\tBY RESERVATIONS\tBY COMMITMENTS")
	line := func(k cost.Key, s *cost.Sums) {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%d\t%.4f\t%.4f\t%.4f\t%.4f\t%.4f\t%.4f\t%.4f\n", k.Cluster, k.NodePool, k.InstanceType, k.CapacityType,
			s.Machines, s.Unpriced, s.OnDemand, s.List, s.Paid, s.Committed, s.Saved.Spot, s.Saved.Reservations, s.Saved.Commitments)
	}
	for i := range r.Rows {
		line(r.Rows[i].Key, &r.Rows[i].Sums)
	}
	line(cost.Key{Cluster: "total"}, &r.Total)
	_ = table.Flush() // of a buffer
	for _, c := range r.Commitments {
		fmt.Fprintf(&out, "%s: %.4f of %.4f used, %.4f unused, wasted %.4f\n", c.Name, c.Used, c.Committed, c.Unused, ptr.Deref(c.Wasted, 0))
	}
	for _, use := range r.Reservations {
		fmt.Fprintf(&out, "%s: %d of %d used, %d unused, wasted %.4f\n", use.ID, use.Used, use.Count, use.Unused, ptr.Deref(use.Wasted, 0))
	}
	fmt.Fprintf(&out, "wasted %.4f\n", r.Wasted)
	return out.String()
}

func TestFleet(t *testing.T) {
	report := cost.Of(fleet.machines, fleet.commitments, fleet.reservations)
	t.Run("When a fleet is worked by hand, it should have the same total", func(t *testing.T) {
		want := cost.Sums{
			Machines: 9, Unpriced: 1, OnDemand: 1.00 + 0.10 + 0.278, List: 1.00 + 0.03 + 0.02, Paid: 0.72 + 0.03 + 0.02, Committed: 0.24 + 0.28,
			Saved: cost.Savings{Spot: 0.07, Reservations: 0.258, Commitments: 0.28},
		}
		if diff := difference(want, report.Total); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		// The idle plan, and eight of the reservation at 0.010. What spare costs isn't known.
		if !equal(report.Wasted, 0.50+0.08) {
			t.Errorf("wasted %g, want 0.58", report.Wasted)
		}
	})
	t.Run("When clusters share a commitment, each should have its part of what is covered", func(t *testing.T) {
		groups := report.Group(func(k cost.Key) cost.Key { return cost.Key{Cluster: k.Cluster} })
		if len(groups) != 2 || !equal(groups[0].Paid, 0.72*2/5+0.03) || !equal(groups[1].Paid, 0.72*3/5+0.02) {
			t.Errorf("groups: %+v", groups)
		}
	})
	t.Run("When all of it is shown, it should be what the golden file has", func(t *testing.T) {
		const golden = "testdata/fleet.golden"
		got := text(report)
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// anyFleet is a random one.
func anyFleet(random *rand.Rand) (list []cost.Machines, commitments []division.Commitment, reservations []cost.Reservation) {
	types, clusters, pools := []string{"m5.large", "m5.xlarge", "c5.large"}, []string{"blue", "green", "red"}, []string{"general", "batch"}
	pick := func(names []string) []string {
		if random.IntN(2) == 0 {
			return nil
		}
		return []string{names[random.IntN(len(names))]}
	}
	for range random.IntN(5) {
		c := division.Commitment{Name: fmt.Sprint("c", len(commitments)), Selector: division.Selector{InstanceTypes: pick(types)}, Discount: float64(random.IntN(10)) / 10}
		if random.IntN(2) == 0 {
			c.Kind, c.InstanceType, c.SizeFlexible, c.Instances = division.ReservedInstance, types[random.IntN(3)], random.IntN(2) == 0, float64(1+random.IntN(6))
		} else {
			c.Kind, c.HourlySpend = division.SavingsPlan, random.Float64()
		}
		commitments = append(commitments, c)
	}
	reservations = []cost.Reservation{{ID: "r", InstanceType: types[0], Zone: "a", Count: random.Int64N(8), Expired: random.IntN(4) == 0}}
	for range random.IntN(15) {
		price := float64(random.IntN(40)) / 100
		m := machines(clusters[random.IntN(3)], pools[random.IntN(2)], types[random.IntN(3)], "on-demand", "", price, 0, 1+random.Int64N(4))
		switch random.IntN(3) {
		case 0:
			m.CapacityType, m.OnDemand = "spot", 3*price
		case 1:
			m.CapacityType, m.Reservation, m.OnDemand = "reserved", "r", 2*price
		}
		list = append(list, m)
	}
	return list, commitments, reservations
}

func TestAnyFleet(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 3000 {
		list, commitments, reservations := anyFleet(random)
		report := cost.Of(list, commitments, reservations)
		committed, sum := 0.0, cost.Sums{}
		for _, c := range report.Commitments {
			committed += ptr.Deref(c.Wasted, 0)
			if c.Unused < 0 || c.Used < 0 || !equal(c.Used+c.Unused, c.Committed) {
				t.Fatalf("of a commitment of %g, %g is used and %g unused", c.Committed, c.Used, c.Unused)
			}
		}
		total := &report.Total
		if report.Wasted < 0 || total.Paid < -rounding || total.Paid > total.List+rounding {
			t.Fatalf("%g is paid and %g wasted for machines of %g", total.Paid, report.Wasted, total.List)
		}
		for _, use := range report.Reservations {
			committed += ptr.Deref(use.Wasted, 0)
		}
		if !equal(report.Wasted, committed) {
			t.Fatalf("%g is wasted, and %g by commitments and reservations", report.Wasted, committed)
		}
		if !equal(total.Saved.Spot+total.Saved.Reservations+total.Saved.Commitments, total.OnDemand-total.Paid) {
			t.Fatalf("the savings aren't what is saved: %+v", total)
		}
		for i := range report.Rows {
			row := &report.Rows[i]
			if row.Paid < -rounding || row.Paid > row.List+rounding || row.Committed > row.Paid+rounding {
				t.Fatalf("a row of %g pays %g, of which %g is committed", row.List, row.Paid, row.Committed)
			}
			sum.Paid += row.Paid
			sum.Machines += row.Machines
			sum.List += row.List
		}
		if !equal(sum.Paid, total.Paid) || !equal(sum.List, total.List) || sum.Machines != total.Machines {
			t.Fatalf("rows of %+v in a total of %+v", sum, total)
		}
		shuffled := append([]cost.Machines{}, list...)
		random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		again := cost.Of(shuffled, commitments, reservations)
		if diff := cmp.Diff(report.Rows, again.Rows, cmp.Comparer(equal)); diff != "" {
			t.Fatalf("another order of the machines changes rows:\n%s", diff)
		}
	}
}
