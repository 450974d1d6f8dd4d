// SPDX-License-Identifier: Apache-2.0

package division

import (
	"math"
	"testing"

	"github.com/autonode-io/autonode/capacity"
)

func priced(instanceType, capacityType string, price float64) capacity.Priced {
	return capacity.Priced{
		Machine: capacity.Machine{Offering: capacity.Offering{InstanceType: instanceType, Zone: "a", CapacityType: capacityType}}, Price: price,
	}
}

func running(instanceType string, price float64) capacity.Priced {
	return priced(instanceType, "on-demand", price)
}

var (
	large, xlarge = running("m5.large", 0.10), running("m5.xlarge", 0.20)
	spot          = priced("m5.large", "spot", 0.03)
	onDemand      = Selector{CapacityTypes: []string{"on-demand"}}
	// xlarge takes 0.14 of it, and large 0.07.
	plan     = Commitment{Name: "plan", Kind: SavingsPlan, Selector: onDemand, HourlySpend: 0.14, Discount: 0.30}
	reserved = Commitment{Name: "reserved", Kind: ReservedInstance, InstanceType: "m5.large", Selector: onDemand, Instances: 2, Discount: 0.40}
)

// applied applies commitments to machines one by one.
func applied(commitments []Commitment, machines []capacity.Priced) *Commitments {
	c := NewCommitments(commitments)
	for _, m := range machines {
		c.Add(Group{Priced: m, Count: 1})
	}
	return c
}

// beyond is the machines' hourly cost beyond commitments.
func beyond(c *Commitments) float64 {
	c.order()
	return c.paid
}

func TestMarginalPrice(t *testing.T) {
	for _, tc := range []struct {
		name        string
		commitments []Commitment
		runs        []capacity.Priced
		next        capacity.Priced
		want, paid  float64
	}{
		{"When nothing is committed, it should be the list price", nil, []capacity.Priced{large}, xlarge, 0.20, 0.10},
		{"When a plan is unused, it should cost nothing more", []Commitment{plan}, nil, xlarge, 0, 0},
		// xlarge takes 0.20 x 0.7 = 0.14 of the plan: all of it.
		{"When a plan is used up, it should be the list price", []Commitment{plan}, []capacity.Priced{xlarge}, large, 0.10, 0},
		// large takes 0.07, which leaves 0.07 of the 0.14 that xlarge takes: half of its 0.20 is paid.
		{"When a plan covers a part, it should be the rest", []Commitment{plan}, []capacity.Priced{large}, xlarge, 0.10, 0},
		// The dearest first: xlarge uses the plan up, and two of large are paid.
		{"When more runs than a plan covers, it should cover the dearest", []Commitment{plan}, []capacity.Priced{large, xlarge, large}, large, 0.10, 0.20},
		{"When machines are committed, it should cover as many", []Commitment{reserved}, []capacity.Priced{large}, large, 0, 0},
		{"When all committed machines run, it should be the list price", []Commitment{reserved}, []capacity.Priced{large, large, large}, large, 0.10, 0.10},
		// The two large use the reserved machines and leave the plan to xlarge.
		{"When a machine is covered by both, it should use machines before money", []Commitment{plan, reserved}, []capacity.Priced{large, large}, xlarge, 0, 0},
		{"When a capacity type isn't committed, it should be the list price", []Commitment{plan, reserved}, nil, spot, 0.03, 0},
		{"When a commitment has no amount, it should cover nothing", []Commitment{{Name: "none", Kind: SavingsPlan, Discount: 1}}, nil, large, 0.10, 0},
		{"When a commitment costs nothing more, it should cover what it selects", []Commitment{{Name: "free", Kind: SavingsPlan, HourlySpend: 1, Discount: 1}}, []capacity.Priced{large, xlarge}, large, 0, 0},
		{"When a machine has no price, it should cost nothing", []Commitment{plan}, nil, running("m5.large", 0), 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := applied(tc.commitments, tc.runs)
			if got := c.MarginalPrice(&tc.next); math.Abs(got-tc.want) > 1e-9 {
				t.Errorf("marginal price %g, want %g", got, tc.want)
			}
			if paid := beyond(c); math.Abs(paid-tc.paid) > 1e-9 {
				t.Errorf("paid %g, want %g", paid, tc.paid)
			}
		})
	}
	t.Run("When machines of the example in docs/platform/fleet-capacity.md run, one more should cost what its table shows", func(t *testing.T) {
		// Karpenter adds a thousandth of what is covered.
		savings, next := Commitment{Name: "savings-plan", Kind: SavingsPlan, Selector: onDemand, HourlySpend: 0.50, Discount: 0.275}, running("m5.xlarge", 0.192)
		var runs []capacity.Priced
		for i, want := range []float64{0, 0, 0, 0.0783, 0.192, 0.192} {
			if got := applied([]Commitment{savings}, runs).MarginalPrice(&next); math.Abs(got-want) > 5e-5 {
				t.Errorf("beside %d machines it costs %g, want %g", i, got, want)
			}
			runs = append(runs, next)
		}
	})
	t.Run("When a commitment is partly used, it should say what isn't", func(t *testing.T) {
		if _, unused := applied([]Commitment{plan, reserved}, []capacity.Priced{large, xlarge}).Shares(); math.Abs(unused[1]) > 1e-9 || unused[0] != 1 {
			t.Errorf("unused: %v", unused)
		}
	})
}

func TestSaving(t *testing.T) {
	for _, tc := range []struct {
		name        string
		commitments []Commitment
		runs        []capacity.Priced
		less        capacity.Priced
		want        float64
	}{
		{"When nothing is committed, one less should save its list price", nil, []capacity.Priced{large, xlarge}, xlarge, 0.20},
		{"When a plan covers it and nothing else would use that, it should save nothing", []Commitment{plan}, []capacity.Priced{xlarge}, xlarge, 0},
		{"When a plan doesn't cover it, it should save its list price", []Commitment{plan}, []capacity.Priced{xlarge, large}, large, 0.10},
		// The plan has xlarge. Without it, the plan covers large, which is paid now: 0.10 of 0.20.
		{"When a plan covers it and a smaller one would use a part of that, it should save what the smaller one costs", []Commitment{plan}, []capacity.Priced{xlarge, large}, xlarge, 0.10},
		{"When a plan covers it and others would use all of that, it should save its list price", []Commitment{plan}, []capacity.Priced{xlarge, xlarge}, xlarge, 0.20},
		// The plan has 0.10 of the 0.14 that xlarge takes: 4/14 of 0.20 are paid.
		{"When a plan covers a part of it, it should save the rest", []Commitment{{Name: "plan", Kind: SavingsPlan, Selector: onDemand, HourlySpend: 0.10, Discount: 0.30}}, []capacity.Priced{xlarge}, xlarge, 0.20 * 4 / 14},
		{"When fewer run than machines are committed, it should save nothing", []Commitment{reserved}, []capacity.Priced{large}, large, 0},
		{"When as many run as machines are committed, it should save nothing", []Commitment{reserved}, []capacity.Priced{large, large}, large, 0},
		{"When more run than machines are committed, it should save its list price", []Commitment{reserved}, []capacity.Priced{large, large, large}, large, 0.10},
		{"When a commitment of machines doesn't select it, it should save its list price", []Commitment{reserved}, []capacity.Priced{large, xlarge}, xlarge, 0.20},
		{"When its capacity type isn't committed, it should save its list price", []Commitment{plan, reserved}, []capacity.Priced{spot, large}, spot, 0.03},
		// The machines have the two large, and the plan has xlarge and nothing of the third large.
		{"When two commitments select it and one would cover another one, it should save its list price", []Commitment{plan, reserved}, []capacity.Priced{large, large, large, xlarge}, large, 0.10},
		{"When it has no price, it should save nothing", []Commitment{plan}, []capacity.Priced{running("m5.large", 0)}, running("m5.large", 0), 0},
		{"When a commitment costs nothing, it should save nothing", []Commitment{{Name: "free", Kind: SavingsPlan, HourlySpend: 1, Discount: 1}}, []capacity.Priced{large}, large, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := applied(tc.commitments, tc.runs).Saving(&tc.less); math.Abs(got-tc.want) > 1e-9 {
				t.Errorf("it saves %g, want %g", got, tc.want)
			}
		})
	}
}
