// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"math"
	"math/rand/v2"
	"testing"
)

func running(instanceType string, price float64) Running {
	return Running{Offering: Offering{InstanceType: instanceType, Zone: "a", CapacityType: "on-demand"}, Price: price}
}

var (
	large, xlarge = running("m5.large", 0.10), running("m5.xlarge", 0.20)
	spot          = Running{Offering: Offering{InstanceType: "m5.large", Zone: "a", CapacityType: "spot"}, Price: 0.03}
	onDemand      = Selector{CapacityTypes: []string{"on-demand"}}
	// xlarge takes 0.14 of it, and large 0.07.
	plan     = Commitment{Name: "plan", Selector: onDemand, HourlySpend: 0.14, Discount: 0.30}
	reserved = Commitment{Name: "reserved", Selector: Selector{InstanceTypes: []string{"m5.large"}, CapacityTypes: []string{"on-demand"}}, Machines: 2, Discount: 0.40}
)

// applied applies commitments to machines one by one.
func applied(commitments []Commitment, machines []Running) *Commitments {
	groups := make([]Group, len(machines))
	for i, m := range machines {
		groups[i] = Group{m, 1}
	}
	c, _ := Apply(commitments, groups)
	return c
}

func TestMarginalPrice(t *testing.T) {
	for _, tc := range []struct {
		name        string
		commitments []Commitment
		runs        []Running
		next        Running
		want, paid  float64
	}{
		{"When nothing is committed, it should be the list price", nil, []Running{large}, xlarge, 0.20, 0.10},
		{"When a plan is unused, it should cost nothing more", []Commitment{plan}, nil, xlarge, 0, 0},
		// xlarge takes 0.20 x 0.7 = 0.14 of the plan: all of it.
		{"When a plan is used up, it should be the list price", []Commitment{plan}, []Running{xlarge}, large, 0.10, 0},
		// large takes 0.07, which leaves 0.07 of the 0.14 that xlarge takes: half of its 0.20 is paid.
		{"When a plan covers a part, it should be the rest", []Commitment{plan}, []Running{large}, xlarge, 0.10, 0},
		// The dearest first: xlarge uses the plan up, and two of large are paid.
		{"When more runs than a plan covers, it should cover the dearest", []Commitment{plan}, []Running{large, xlarge, large}, large, 0.10, 0.20},
		{"When machines are committed, it should cover as many", []Commitment{reserved}, []Running{large}, large, 0, 0},
		{"When all committed machines run, it should be the list price", []Commitment{reserved}, []Running{large, large, large}, large, 0.10, 0.10},
		// The two large use the reserved machines and leave the plan to xlarge.
		{"When a machine is covered by both, it should use machines before money", []Commitment{plan, reserved}, []Running{large, large}, xlarge, 0, 0},
		{"When a capacity type isn't committed, it should be the list price", []Commitment{plan, reserved}, nil, spot, 0.03, 0},
		{"When a commitment has no amount, it should cover nothing", []Commitment{{Name: "none", Discount: 1}}, nil, large, 0.10, 0},
		{"When a commitment costs nothing more, it should cover what it selects", []Commitment{{Name: "free", HourlySpend: 1, Discount: 1}}, []Running{large, xlarge}, large, 0, 0},
		{"When a machine has no price, it should cost nothing", []Commitment{plan}, nil, running("m5.large", 0), 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := applied(tc.commitments, tc.runs)
			if got := c.MarginalPrice(&tc.next); math.Abs(got-tc.want) > 1e-9 {
				t.Errorf("marginal price %g, want %g", got, tc.want)
			}
			if math.Abs(c.Paid-tc.paid) > 1e-9 {
				t.Errorf("paid %g, want %g", c.Paid, tc.paid)
			}
		})
	}
	t.Run("When machines of the example in docs/fleet-capacity.md run, one more should cost what its picture shows", func(t *testing.T) {
		// Karpenter adds a thousandth of what is covered.
		savings, k4 := Commitment{Name: "savings-plan", Selector: onDemand, HourlySpend: 0.50, Discount: 0.275}, running("k4", 0.139)
		var runs []Running
		for i, want := range []float64{0, 0, 0, 0, 0.0053, 0.139, 0.139} {
			if got := applied([]Commitment{savings}, runs).MarginalPrice(&k4); math.Abs(got-want) > 5e-5 {
				t.Errorf("beside %d machines it costs %g, want %g", i, got, want)
			}
			runs = append(runs, k4)
		}
	})
	t.Run("When a commitment is partly used, it should say what isn't", func(t *testing.T) {
		if unused := applied([]Commitment{plan, reserved}, []Running{large, xlarge}).Unused(); math.Abs(unused["plan"]) > 1e-9 || unused["reserved"] != 1 {
			t.Errorf("unused: %v", unused)
		}
	})
}

func TestSaving(t *testing.T) {
	for _, tc := range []struct {
		name        string
		commitments []Commitment
		runs        []Running
		less        Running
		want        float64
	}{
		{"When nothing is committed, one less should save its list price", nil, []Running{large, xlarge}, xlarge, 0.20},
		{"When a plan covers it and nothing else would use that, it should save nothing", []Commitment{plan}, []Running{xlarge}, xlarge, 0},
		{"When a plan doesn't cover it, it should save its list price", []Commitment{plan}, []Running{xlarge, large}, large, 0.10},
		// The plan has xlarge. Without it, the plan covers large, which is paid now: 0.10 of 0.20.
		{"When a plan covers it and a smaller one would use a part of that, it should save what the smaller one costs", []Commitment{plan}, []Running{xlarge, large}, xlarge, 0.10},
		{"When a plan covers it and others would use all of that, it should save its list price", []Commitment{plan}, []Running{xlarge, xlarge}, xlarge, 0.20},
		// The plan has 0.10 of the 0.14 that xlarge takes: 4/14 of 0.20 are paid.
		{"When a plan covers a part of it, it should save the rest", []Commitment{{Name: "plan", Selector: onDemand, HourlySpend: 0.10, Discount: 0.30}}, []Running{xlarge}, xlarge, 0.20 * 4 / 14},
		{"When fewer run than machines are committed, it should save nothing", []Commitment{reserved}, []Running{large}, large, 0},
		{"When as many run as machines are committed, it should save nothing", []Commitment{reserved}, []Running{large, large}, large, 0},
		{"When more run than machines are committed, it should save its list price", []Commitment{reserved}, []Running{large, large, large}, large, 0.10},
		{"When a commitment of machines doesn't select it, it should save its list price", []Commitment{reserved}, []Running{large, xlarge}, xlarge, 0.20},
		{"When its capacity type isn't committed, it should save its list price", []Commitment{plan, reserved}, []Running{spot, large}, spot, 0.03},
		// The machines have the two large, and the plan has xlarge and nothing of the third large.
		{"When two commitments select it and one would cover another one, it should save its list price", []Commitment{plan, reserved}, []Running{large, large, large, xlarge}, large, 0.10},
		{"When it has no price, it should save nothing", []Commitment{plan}, []Running{running("m5.large", 0)}, running("m5.large", 0), 0},
		{"When a commitment costs nothing, it should save nothing", []Commitment{{Name: "free", HourlySpend: 1, Discount: 1}}, []Running{large}, large, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := applied(tc.commitments, tc.runs).Saving(&tc.less); math.Abs(got-tc.want) > 1e-9 {
				t.Errorf("it saves %g, want %g", got, tc.want)
			}
		})
	}
	t.Run("When there is one plan, it should be what the account pays less without the machine, whatever runs", func(t *testing.T) {
		random := rand.New(rand.NewPCG(3, 4))
		for range 3000 {
			commitments := []Commitment{{Name: "plan", HourlySpend: random.Float64(), Discount: float64(random.IntN(10)) / 10}}
			var runs []Running
			for range 1 + random.IntN(8) {
				runs = append(runs, running([]string{"m5.large", "m5.xlarge"}[random.IntN(2)], float64(1+random.IntN(40))/100))
			}
			all := applied(commitments, runs)
			for i := range runs {
				without := append(append([]Running{}, runs[:i]...), runs[i+1:]...)
				if saves, less := all.Saving(&runs[i]), all.Paid-applied(commitments, without).Paid; math.Abs(saves-less) > 1e-9 {
					t.Fatalf("%v saves %g of %v, and %g is paid less, with %v", runs[i], saves, runs, less, commitments)
				}
			}
		}
	})
}

func TestPricesOfAnyFleet(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	types, zones, capacityTypes := []string{"m5.large", "m5.xlarge", "c5.large"}, []string{"a", "b"}, []string{"on-demand", "spot"}
	pick := func(of []string) []string {
		if random.IntN(2) == 0 {
			return nil
		}
		return []string{of[random.IntN(len(of))]}
	}
	machine := func() Running {
		return Running{
			Offering: Offering{InstanceType: types[random.IntN(3)], Zone: zones[random.IntN(2)], CapacityType: capacityTypes[random.IntN(2)]},
			Price:    float64(random.IntN(40)) / 100,
		}
	}
	const rounding = 1e-9
	for range 3000 {
		var commitments []Commitment
		for range random.IntN(5) {
			c := Commitment{Selector: Selector{InstanceTypes: pick(types), Zones: pick(zones), CapacityTypes: pick(capacityTypes)}, Discount: float64(random.IntN(11)) / 10}
			c.Name = string(rune('a' + len(commitments)))
			if random.IntN(2) == 0 {
				c.Machines = random.Int64N(6)
			} else {
				c.HourlySpend = random.Float64()
			}
			commitments = append(commitments, c)
		}
		var fleet []Running
		list, next := 0.0, machine()
		before := applied(commitments, nil)
		for range random.IntN(12) {
			m := machine()
			marginal := before.MarginalPrice(&next)
			if marginal < 0 || marginal > next.Price+rounding {
				t.Fatalf("a marginal price of %g at a list price of %g", marginal, next.Price)
			}
			fleet = append(fleet, m)
			list += m.Price
			after := applied(commitments, fleet)
			if now := after.MarginalPrice(&next); now < marginal-rounding {
				t.Fatalf("the marginal price falls from %g to %g when %v runs beside %v of %v", marginal, now, m, fleet, commitments)
			}
			if after.Paid < -rounding || after.Paid > list+rounding {
				t.Fatalf("%g is paid for machines of %g", after.Paid, list)
			}
			before = after
		}
		if len(commitments) > 0 {
			price := before.MarginalPrice(&next)
			for i := range commitments {
				more := append([]Commitment{}, commitments...)
				if more[i].Machines > 0 {
					more[i].Machines++
				} else {
					more[i].HourlySpend += 0.2
				}
				if now := applied(more, fleet).MarginalPrice(&next); now > price+rounding {
					t.Fatalf("the marginal price rises from %g to %g when more is committed: %v", price, now, more)
				}
			}
		}
	}
}
