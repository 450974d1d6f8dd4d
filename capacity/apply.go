// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"cmp"
	"math"
	"slices"
)

// quantized makes ratios of decimal prices comparable that differ by rounding alone.
func quantized(ratio float64) float64 { return math.Round(ratio * 1e9) }

// rank is the place of a group in the order in which a cover applies to it. Groups of one rank share the rest of the cover equally.
type rank struct {
	first, second float64
	instanceType  string
	idle          int
}

func (a rank) compare(b rank) int {
	return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(a.second, b.second), cmp.Compare(a.instanceType, b.instanceType), cmp.Compare(a.idle, b.idle))
}

// rank of a machine that uses this much. Money covers the groups that save most first, and among equals those with the lowest rate.
// Instances of a flexible size cover the smallest size first. Custom instances cover the dearest machine first. vCPUs and memory have one
// price.
func (c *Cover) rank(m *Running, units float64) rank {
	idle := 0
	if m.Idle {
		idle = 1
	}
	switch {
	case c.Measure == Money:
		return rank{quantized(units / m.Price), quantized(units), m.InstanceType, idle}
	case c.Measure == Instances && c.custom():
		return rank{-m.Price, 0, m.InstanceType, idle}
	case c.Measure == Instances:
		return rank{quantized(units), 0, m.InstanceType, idle}
	}
	return rank{idle: idle}
}

// Running is a machine that runs, or may run, and its list price an hour.
type Running struct {
	Offering
	Price float64
	// VCPUs in thousandths, and Memory in bytes: as in Machine. Only committed use needs them.
	VCPUs, Memory int64
	// Idle: it doesn't run, but is reserved and billed. It is covered after those that run, and not by Custom commitments.
	Idle bool
}

// Group is a number of equal machines that run.
type Group struct {
	Running
	Count int64
}

// Share is the part of a group's list price that a commitment covers, from 0 to 1. Group and Commitment are indexes.
type Share struct {
	Group, Commitment int
	Part              float64
	// Units of the commitment that it uses, and their Cost an hour.
	Units, Cost float64
}

// uncovered is the uncovered part of a machine: of its list price, its vCPUs and its memory, each from 0 to 1.
type uncovered struct{ price, cpus, gibs float64 }

// open is the part of a machine's units that a cover may still apply to. part is that of the list price which all units cover.
func (u *uncovered) open(measure Measure, part float64) float64 {
	switch measure {
	case CPUs:
		return min(u.cpus, u.price/part)
	case GiBs:
		return min(u.gibs, u.price/part)
	}
	return u.price
}

// take covers a part of a machine's units, and returns the part of its list price that this covers.
func (u *uncovered) take(measure Measure, taken, part float64) float64 {
	before := u.price
	u.price = max(0, u.price-taken*part)
	if u.price < 1e-12 {
		u.price = 0
	}
	switch measure {
	case CPUs:
		u.cpus = max(0, u.cpus-taken)
	case GiBs:
		u.gibs = max(0, u.gibs-taken)
	default:
		if before > 0 {
			u.cpus, u.gibs = u.cpus*u.price/before, u.gibs*u.price/before
		}
	}
	return before - u.price
}

// candidate is a group that a cover may apply to.
type candidate struct {
	at          int
	rank        rank
	units, part float64
	// open is the part of its units that isn't covered yet, and need the units of the cover for it.
	open, need float64
}

// Commitments are an account's commitments, applied to its running machines.
type Commitments struct {
	covers []Cover
	// Paid is the running machines' hourly cost beyond commitments.
	Paid float64
}

// Apply applies commitments to the machines that run by the clouds' published rules, and returns each group's shares. A machine may
// be covered in part. Clouds bill by the hour and with more details, so that a bill differs.
func Apply(commitments []Commitment, groups []Group) (*Commitments, []Share) {
	c := &Commitments{covers: CoversOf(commitments)}
	left := make([]uncovered, len(groups))
	for i := range left {
		left[i] = uncovered{1, 1, 1}
	}
	var shares []Share
	var candidates []candidate
	for k := range c.covers {
		cover := &c.covers[k]
		candidates = cover.candidates(candidates[:0], groups, left)
		for len(candidates) > 0 && cover.Left > 0 {
			n, need := 1, candidates[0].need
			for n < len(candidates) && candidates[n].rank == candidates[0].rank {
				need += candidates[n].need
				n++
			}
			fraction := 1.0
			if need > cover.Left {
				fraction = cover.Left / need
			}
			for i := range candidates[:n] {
				shares = cover.apply(shares, &candidates[i], fraction, groups, left, commitments)
			}
			if cover.Left -= need * fraction; fraction < 1 || cover.Left < 1e-12*cover.Committed {
				cover.Left = 0
			}
			candidates = candidates[n:]
		}
	}
	c.lack(groups, left)
	return c, shares
}

// candidates returns the groups that a cover may apply to, in its order.
func (c *Cover) candidates(into []candidate, groups []Group, left []uncovered) []candidate {
	if c.Left <= 0 {
		return into
	}
	for i := range groups {
		m := &groups[i]
		units, part, ok := c.units(&m.Running)
		if !ok || m.Count <= 0 || left[i].price <= 0 {
			continue
		}
		if open := left[i].open(c.Measure, part); open > 0 {
			into = append(into, candidate{at: i, rank: c.rank(&m.Running, units), units: units, part: part, open: open, need: units * open * float64(m.Count)})
		}
	}
	slices.SortStableFunc(into, func(a, b candidate) int { return a.rank.compare(b.rank) })
	return into
}

// apply covers a fraction of a group's open part.
func (c *Cover) apply(shares []Share, of *candidate, fraction float64, groups []Group, left []uncovered, commitments []Commitment) []Share {
	m := &groups[of.at]
	covered := left[of.at].take(c.Measure, of.open*fraction, of.part)
	share := Share{Group: of.at, Commitment: c.of, Part: covered, Units: of.need * fraction}
	share.Cost = share.Units * c.Price
	if c.Measure == Instances && c.Price == 0 {
		share.Cost = covered * float64(m.Count) * m.Price * (1 - min(max(commitments[c.of].Discount, 0), 1))
	}
	if of.units > 0 {
		c.Displaced = of.part * m.Price / of.units
	}
	return append(shares, share)
}

// lack sums up the cost of running machines beside commitments, and the units of each that they would use.
func (c *Commitments) lack(groups []Group, left []uncovered) {
	for i := range groups {
		m := &groups[i]
		if m.Count <= 0 || m.Price <= 0 || left[i].price <= 0 {
			continue
		}
		c.Paid += m.Price * float64(m.Count) * left[i].price
		for k := range c.covers {
			cover := &c.covers[k]
			if units, part, ok := cover.units(&m.Running); ok && units > 0 {
				cover.Uncovered += units * left[i].open(cover.Measure, part) * float64(m.Count)
				cover.Gained = max(cover.Gained, part*m.Price/units)
			}
		}
	}
}
