// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"cmp"
	"slices"
)

// Commitment is what is paid for whether it is used or not: an amount of money an hour, such as a savings plan, or a
// number of machines, such as reserved instances or committed use discounts. Set one of HourlySpend and Machines.
type Commitment struct {
	Name     string
	Selector Selector
	// HourlySpend is in the currency of the prices.
	HourlySpend float64
	// Machines is a number of machines of each offering's size; any that are selected.
	Machines int64
	// Discount from the list price, from 0 to 1: what a committed hour costs less.
	Discount float64
}

// Running is a machine that runs, or may run, and its list price an hour.
type Running struct {
	Offering
	Price float64
}

// Commitments are an account's commitments beside what runs in it.
type Commitments struct {
	commitments []Commitment
	// left is what of each is unused: money an hour, or machines.
	left []float64
	// Paid is what the running machines cost an hour beyond what is committed.
	Paid float64
}

// Apply applies commitments to the machines that run. Machines are covered in the order of their list price, the
// dearest first, and each by the commitments that select it in the order of their discount, the highest first, those of
// machines before those of money; a machine may be covered in part. Providers bill by such a rule (AWS applies savings
// plans to the highest discount first), to the hour and with more details, so that a bill differs.
func Apply(commitments []Commitment, machines []Running) *Commitments {
	c := &Commitments{commitments: slices.Clone(commitments)}
	slices.SortStableFunc(c.commitments, func(a, b Commitment) int {
		return cmp.Or(-cmp.Compare(min(a.Machines, 1), min(b.Machines, 1)), cmp.Compare(b.Discount, a.Discount), cmp.Compare(a.Name, b.Name))
	})
	c.left = make([]float64, len(c.commitments))
	for i, commitment := range c.commitments {
		c.left[i] = max(0, commitment.HourlySpend)
		if commitment.Machines > 0 {
			c.left[i] = float64(commitment.Machines)
		}
	}
	machines = slices.Clone(machines)
	slices.SortStableFunc(machines, func(a, b Running) int {
		return cmp.Or(cmp.Compare(b.Price, a.Price), cmp.Compare(a.InstanceType, b.InstanceType), cmp.Compare(a.Zone, b.Zone),
			cmp.Compare(a.CapacityType, b.CapacityType), cmp.Compare(a.Reservation, b.Reservation))
	})
	for _, m := range machines {
		c.Paid += c.cover(m, c.left)
	}
	return c
}

// MarginalPrice is what one more machine would cost an hour, beside what runs: its list price without the part that
// unused commitments cover. It is never negative and never above the list price, doesn't fall when more machines run,
// and doesn't rise when more is committed.
func (c *Commitments) MarginalPrice(m Running) float64 {
	if m.Price <= 0 {
		return 0
	}
	return c.cover(m, slices.Clone(c.left))
}

// Unused returns what of each commitment is unused, by name: money an hour, or machines.
func (c *Commitments) Unused() map[string]float64 {
	unused := make(map[string]float64, len(c.left))
	for i, commitment := range c.commitments {
		unused[commitment.Name] = c.left[i]
	}
	return unused
}

// cover takes what covers a machine from what is left, and returns the price of the uncovered part.
func (c *Commitments) cover(m Running, left []float64) float64 {
	uncovered := 1.0
	for i, commitment := range c.commitments {
		if uncovered <= 0 || m.Price <= 0 {
			break
		}
		if left[i] <= 0 || !commitment.Selector.Selects(m.Offering) {
			continue
		}
		// rate is what covering the whole machine takes.
		rate := 1.0
		if commitment.Machines <= 0 {
			rate = m.Price * (1 - min(max(commitment.Discount, 0), 1))
		}
		needed := rate * uncovered
		if needed <= left[i] {
			left[i] -= needed
			uncovered = 0
			break
		}
		uncovered -= left[i] / rate
		left[i] = 0
	}
	return m.Price * max(0, uncovered)
}
