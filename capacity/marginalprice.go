// SPDX-License-Identifier: Apache-2.0

package capacity

import "slices"

// Commitment is the index of the cover's commitment, of those that CoversOf was called with.
func (c *Cover) Commitment() int { return c.of }

// Applies reports whether the cover may apply to a machine.
func (c *Cover) Applies(m *Running) bool {
	_, _, ok := c.units(m)
	return ok
}

// Largest is the most of the cover that one of these machines would use; zero if none would.
func (c *Cover) Largest(groups []Group) float64 {
	most := 0.0
	for i := range groups {
		if units, _, ok := c.units(&groups[i].Running); ok {
			most = max(most, units)
		}
	}
	return most
}

// Cheapest is the lowest list price of the machines that the cover may apply to, for one unit of it; zero if none of them runs.
func (c *Cover) Cheapest(groups []Group) float64 {
	least := 0.0
	for i := range groups {
		m := &groups[i]
		if units, part, ok := c.units(&m.Running); ok && m.Count > 0 && units > 0 {
			if price := part * m.Price / units; least == 0 || price < least {
				least = price
			}
		}
	}
	return least
}

// Covers returns the covers of the commitments, in the order in which they apply. Don't modify it.
func (c *Commitments) Covers() []Cover { return c.covers }

// Resume returns the Commitments whose Covers were these, in this order. Paid isn't known.
func Resume(covers []Cover) *Commitments { return &Commitments{covers: covers} }

// Equal reports whether as much is left, so that prices are the same, of Commitments that Less has returned of the same.
func (c *Commitments) Equal(other *Commitments) bool {
	return slices.EqualFunc(c.covers, other.covers, func(a, b Cover) bool { return a.Name == b.Name && a.Left == b.Left && a.Displaced == b.Displaced })
}

// Less returns the Commitments beside machines that run, too. Nil groups change nothing.
func (c *Commitments) Less(groups []Group) *Commitments {
	if len(groups) == 0 {
		return c
	}
	less := &Commitments{covers: slices.Clone(c.covers)}
	for i := range groups {
		m := &groups[i]
		left := uncovered{1, 1, 1}
		for k := range less.covers {
			cover := &less.covers[k]
			units, part, ok := cover.units(&m.Running)
			if !ok || left.price <= 0 || m.Count <= 0 || cover.Left <= 0 {
				continue
			}
			taken := left.open(cover.Measure, part)
			if need := units * taken * float64(m.Count); need > cover.Left {
				taken *= cover.Left / need
				cover.Left = 0
			} else {
				cover.Left -= need
			}
			left.take(cover.Measure, taken, part)
			if units > 0 {
				cover.Displaced = part * m.Price / units
			}
		}
	}
	return less
}

// MarginalPrice is the hourly cost of one more machine, beside the running ones: its list price without the part that unused commitments
// cover. Of a commitment that is used up it takes the cover from a machine that saves less, and costs that machine's price without it. It
// is never negative and never above the list price, doesn't fall when more machines run, and doesn't rise when more is committed.
func (c *Commitments) MarginalPrice(m *Running) float64 {
	if m.Price <= 0 {
		return 0
	}
	left := uncovered{1, 1, 1}
	for k := range c.covers {
		cover := &c.covers[k]
		if cover.Left <= 0 {
			continue
		}
		units, part, ok := cover.units(m)
		if !ok {
			continue
		}
		taken := left.open(cover.Measure, part)
		if need := units * taken; need > cover.Left {
			taken *= cover.Left / need
		}
		if left.take(cover.Measure, taken, part); left.price <= 0 {
			return 0
		}
	}
	// The uncovered rest may displace a machine that saves less.
	displaced := 1.0
	for k := range c.covers {
		if cover := &c.covers[k]; cover.Displaced > 0 && cover.Left <= 0 {
			if units, part, ok := cover.units(m); ok && part == 1 {
				displaced = min(displaced, units*cover.Displaced/m.Price)
			}
		}
	}
	return m.Price * left.price * displaced
}

// Saving is the hourly saving with one machine less of those that run: nothing if a commitment that covers it would then
// be unused, its list price if other machines would use it. It is a node's price while it runs, as MarginalPrice is that
// of another one: without the difference, a machine that a commitment covers would be replaced by one that is cheaper
// than the next of its kind, and that one by the covered machine.
func (c *Commitments) Saving(m *Running) float64 {
	if m.Price <= 0 {
		return 0
	}
	saved, selected := 0.0, false
	// The costs of the parts of vCPUs and memory, and their savings with one machine less.
	var cost, less [2]float64
	for k := range c.covers {
		cover := &c.covers[k]
		units, part, ok := cover.units(m)
		if !ok {
			continue
		}
		selected = true
		more := min(part*m.Price, min(units, cover.Uncovered)*cover.Gained)
		switch cover.Measure {
		case CPUs:
			cost[0], less[0] = part*m.Price, max(less[0], more)
		case GiBs:
			cost[1], less[1] = part*m.Price, max(less[1], more)
		default:
			saved = max(saved, more)
		}
	}
	switch {
	case !selected:
		return m.Price
	case cost[0]+cost[1] > 0:
		return max(saved, m.Price-(cost[0]-less[0])-(cost[1]-less[1]), 0)
	}
	return saved
}

// Unused returns the unused amount of each commitment, by the name of its cover and in its unit.
func (c *Commitments) Unused() map[string]float64 {
	unused := make(map[string]float64, len(c.covers))
	for k := range c.covers {
		unused[c.covers[k].Name] = c.covers[k].Left
	}
	return unused
}
