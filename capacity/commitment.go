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

// Group is a number of equal machines that run.
type Group struct {
	Running
	Count int64
}

// Share is the part of a group's price that a commitment covers, from 0 to 1. Group and Commitment are indexes.
type Share struct {
	Group, Commitment int
	Part              float64
}

// Commitments are an account's commitments beside what runs in it.
type Commitments struct {
	commitments []Commitment
	// given is the index that each commitment had before it was sorted.
	given []int
	// left is what of each is unused, and uncovered what running machines that it selects would take more of it: money an
	// hour, or machines.
	left, uncovered []float64
	// Paid is what the running machines cost an hour beyond what is committed.
	Paid float64
}

// Apply applies commitments to the machines that run, and returns what covers each group. Machines are covered in the order of their list price, the
// dearest first, and each by the commitments that select it in the order of their discount, the highest first, those of
// machines before those of money; a machine may be covered in part. Providers bill by such a rule (AWS applies savings
// plans to the highest discount first), to the hour and with more details, so that a bill differs.
//
// Machines of a group share what covers it equally. The group of equal machines has to be one, or its order among the groups
// decides.
func Apply(commitments []Commitment, groups []Group) (*Commitments, []Share) {
	c := ordered(commitments)
	for i, commitment := range c.commitments {
		c.left[i] = max(0, commitment.HourlySpend)
		if commitment.Machines > 0 {
			c.left[i] = float64(commitment.Machines)
		}
	}
	order := make([]int, len(groups))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		a, b := &groups[i], &groups[j]
		return cmp.Or(cmp.Compare(b.Price, a.Price), cmp.Compare(a.InstanceType, b.InstanceType), cmp.Compare(a.Zone, b.Zone),
			cmp.Compare(a.CapacityType, b.CapacityType), cmp.Compare(a.Reservation, b.Reservation), cmp.Compare(a.Catalog, b.Catalog))
	})
	var shares []Share
	for _, at := range order {
		m := groups[at]
		paid := c.cover(m, c.left, func(i int, part float64) {
			shares = append(shares, Share{Group: at, Commitment: c.given[i], Part: part})
		})
		c.Paid += paid
		if paid <= 0 {
			continue
		}
		for i, commitment := range c.commitments {
			if commitment.Selector.Selects(m.Offering) {
				c.uncovered[i] += commitment.rate(m.Running) * paid / m.Price
			}
		}
	}
	return c, shares
}

// Resume returns the Commitments of which Unused and Uncovered have returned these amounts. Absent amounts are zero. Paid
// isn't known.
func Resume(commitments []Commitment, unused, uncovered map[string]float64) *Commitments {
	c := ordered(commitments)
	for i, commitment := range c.commitments {
		c.left[i], c.uncovered[i] = max(0, unused[commitment.Name]), max(0, uncovered[commitment.Name])
	}
	return c
}

// ordered returns commitments in the order in which they cover a machine.
func ordered(commitments []Commitment) *Commitments {
	c := &Commitments{
		commitments: make([]Commitment, len(commitments)), given: make([]int, len(commitments)),
		left: make([]float64, len(commitments)), uncovered: make([]float64, len(commitments)),
	}
	for i := range c.given {
		c.given[i] = i
	}
	slices.SortStableFunc(c.given, func(i, j int) int {
		a, b := &commitments[i], &commitments[j]
		return cmp.Or(-cmp.Compare(min(a.Machines, 1), min(b.Machines, 1)), cmp.Compare(b.Discount, a.Discount), cmp.Compare(a.Name, b.Name))
	})
	for i, at := range c.given {
		c.commitments[i] = commitments[at]
	}
	return c
}

// rate is how much of a commitment covers a whole machine.
func (c Commitment) rate(m Running) float64 {
	if c.Machines > 0 {
		return 1
	}
	return m.Price * (1 - min(max(c.Discount, 0), 1))
}

// MarginalPrice is what one more machine would cost an hour, beside what runs: its list price without the part that
// unused commitments cover. It is never negative and never above the list price, doesn't fall when more machines run,
// and doesn't rise when more is committed.
func (c *Commitments) MarginalPrice(m Running) float64 {
	if m.Price <= 0 {
		return 0
	}
	return c.cover(Group{m, 1}, slices.Clone(c.left), func(int, float64) {})
}

// Saving is what one machine less of those that run would save an hour: nothing if a commitment that covers it would then
// be unused, its list price if other machines would use it. It is a node's price while it runs, as MarginalPrice is that
// of another one: without the difference, a machine that a commitment covers would be replaced by one that is cheaper
// than the next of its kind, and that one by the covered machine.
func (c *Commitments) Saving(m Running) float64 {
	if m.Price <= 0 {
		return 0
	}
	saved, selected := 0.0, false
	for i, commitment := range c.commitments {
		if !commitment.Selector.Selects(m.Offering) {
			continue
		}
		selected = true
		if rate := commitment.rate(m); rate > 0 && c.uncovered[i] > 0 {
			saved = max(saved, min(1, c.uncovered[i]/rate))
		}
	}
	if !selected {
		return m.Price
	}
	return m.Price * saved
}

// Uncovered returns how much more of each commitment the running machines that it selects would use, by name: money an
// hour, or machines.
func (c *Commitments) Uncovered() map[string]float64 {
	uncovered := make(map[string]float64, len(c.uncovered))
	for i, commitment := range c.commitments {
		uncovered[commitment.Name] = c.uncovered[i]
	}
	return uncovered
}

// Unused returns what of each commitment is unused, by name: money an hour, or machines.
func (c *Commitments) Unused() map[string]float64 {
	unused := make(map[string]float64, len(c.left))
	for i, commitment := range c.commitments {
		unused[commitment.Name] = c.left[i]
	}
	return unused
}

// cover takes what covers a group from what is left, calls each with the part that a commitment covers, and returns the price
// of the uncovered part.
func (c *Commitments) cover(m Group, left []float64, each func(i int, part float64)) float64 {
	uncovered := 1.0
	for i, commitment := range c.commitments {
		if uncovered <= 0 || m.Price <= 0 || m.Count <= 0 {
			break
		}
		if left[i] <= 0 || !commitment.Selector.Selects(m.Offering) {
			continue
		}
		rate := commitment.rate(m.Running) * float64(m.Count)
		part := uncovered
		if needed := rate * uncovered; needed <= left[i] {
			left[i] -= needed
		} else {
			part = left[i] / rate
			left[i] = 0
		}
		uncovered -= part
		each(i, part)
	}
	return m.Price * float64(max(0, m.Count)) * max(0, uncovered)
}
