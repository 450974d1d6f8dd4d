// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"cmp"
	"math"
	"slices"
)

// Kind of a commitment: whose rules say what it covers, and in which order.
type Kind string

// Kinds of commitments. Empty is Custom.
const (
	// SavingsPlan is an hourly spend, as of AWS and Azure.
	SavingsPlan Kind = "SavingsPlan"
	// ReservedInstance is a number of EC2 instances of one type.
	ReservedInstance Kind = "ReservedInstance"
	// AzureReservation is a number of virtual machines of one size.
	AzureReservation Kind = "AzureReservation"
	// CommittedUse is an amount of vCPUs and memory, as of Google Cloud.
	CommittedUse Kind = "CommittedUse"
	// Custom is an hourly spend or a number of machines at a percentage.
	Custom Kind = "Custom"
)

// Commitment is what is paid for whether it is used or not. It never covers a spot machine.
type Commitment struct {
	Name     string
	Kind     Kind
	Selector Selector
	// HourlySpend of a SavingsPlan or a Custom commitment, in the currency of the prices.
	HourlySpend float64
	// EC2Instance is the scope of a SavingsPlan that applies before those of the scope Compute.
	EC2Instance bool
	// Rates are what an hour costs within HourlySpend, by instance type. Those without one are at Discount, and not covered if
	// there are rates and no Discount.
	Rates map[string]float64
	// Machines is a number of machines: of InstanceType, or for Custom any that are selected.
	Machines int64
	// Price of one of Machines an hour. Zero: the list price of the covered machine less Discount.
	Price float64
	// InstanceType of a ReservedInstance or an AzureReservation.
	InstanceType string
	// SizeFlexible: other sizes of InstanceType's series use it, too, by the ratio of their sizes. Ratios are those of sizes by
	// instance type where the names don't say.
	SizeFlexible bool
	Ratios       map[string]float64
	// CPU, in vCPUs, and Memory, in GiB, of a CommittedUse.
	CPU, Memory CommittedAmount
	// Discount from the list price, from 0 to 1: what a committed hour costs less.
	Discount float64
}

// CommittedAmount is an amount of a resource that is committed, with the prices of one unit an hour: the committed one and the list price.
type CommittedAmount struct{ Amount, Price, List float64 }

// Measure is what a Cover counts.
type Measure string

// Measures, and their units.
const (
	// Money in the currency of the prices, an hour.
	Money Measure = "Money"
	// Instances of the committed size.
	Instances Measure = "Instances"
	// CPUs are vCPUs, and GiBs of memory.
	CPUs Measure = "CPUs"
	GiBs Measure = "GiBs"
)

// Cover is what one measure of a commitment covers, and how much of it is left. A CommittedUse has two, and all others one.
type Cover struct {
	// Name of the commitment, with /cpu or /memory for a CommittedUse.
	Name     string
	Selector Selector
	Measure  Measure
	// Rates and Discount of Money: see Commitment.
	Rates    map[string]float64
	Discount float64
	// Flexible is whose sizes count by their ratio to InstanceType, ReservedInstance or AzureReservation; empty for any machine that is
	// selected. Ratios of sizes whose names don't say it.
	Flexible     Kind
	InstanceType string
	Ratios       map[string]float64
	// List price of a vCPU or a GiB.
	List float64

	// Left is what is unused, and Uncovered what running machines would use more of it.
	Left, Uncovered float64
	// Displaced is the list price of what a unit covers that would lose it first, and Gained that of what would be covered next; zero
	// for nothing.
	Displaced, Gained float64

	// Committed in all, and the Price of a unit; zero if that depends on the machine.
	Committed, Price float64

	// of is the commitment's index, and tier the place of its kind in the published order.
	of, tier int
}

// covers returns what a commitment covers; nothing of one without an amount.
func (c *Commitment) covers(at int) []Cover {
	cover := Cover{Name: c.Name, Selector: c.Selector, Discount: min(max(c.Discount, 0), 1), of: at}
	switch c.Kind {
	case CommittedUse:
		var covers []Cover
		for _, part := range []struct {
			suffix  string
			measure Measure
			CommittedAmount
		}{{"/cpu", CPUs, c.CPU}, {"/memory", GiBs, c.Memory}} {
			if !(part.Amount > 0) {
				continue
			}
			each := cover
			each.Name, each.Measure, each.List, each.tier = c.Name+part.suffix, part.measure, part.List, 1
			each.Committed, each.Price = part.Amount, part.Price
			covers = append(covers, each)
		}
		return covers
	case ReservedInstance, AzureReservation:
		cover.Measure, cover.InstanceType, cover.tier = Instances, c.InstanceType, 1
		if c.Kind == ReservedInstance && len(c.Selector.Zones) > 0 {
			// A zonal one is never flexible, and doesn't apply to a capacity reservation.
			cover.tier = 0
			if len(cover.Selector.CapacityTypes) == 0 {
				cover.Selector.CapacityTypes = []string{"on-demand"}
			}
		} else if c.SizeFlexible {
			cover.Flexible, cover.Ratios = c.Kind, c.Ratios
		}
		if cover.Flexible == "" {
			cover.Selector.InstanceTypes = []string{c.InstanceType}
		}
		cover.Committed, cover.Price = max(0, float64(c.Machines)), c.Price
	case SavingsPlan:
		cover.Measure, cover.Rates, cover.tier = Money, c.Rates, 4
		if c.EC2Instance {
			cover.tier = 3
		}
		cover.Committed, cover.Price = max(0, c.HourlySpend), 1
	default:
		if c.Machines > 0 {
			cover.Measure, cover.tier, cover.Committed, cover.Price = Instances, 2, float64(c.Machines), c.Price
			break
		}
		cover.Measure, cover.Rates, cover.tier, cover.Committed, cover.Price = Money, c.Rates, 5, max(0, c.HourlySpend), 1
	}
	return []Cover{cover}
}

// CoversOf returns what commitments cover, in the order in which it applies, all of it unused. That is AWS's for its own kinds: Reserved
// Instances, those of a zone first, then savings plans of the scope EC2Instance, then those of the scope Compute. Azure applies
// reservations before savings plans, and Google Cloud committed use before what is spent, likewise. Commitments of a kind apply in the
// order that they are given in; Custom ones in that of their discount, the highest first.
// https://docs.aws.amazon.com/savingsplans/latest/userguide/sp-applying.html
func CoversOf(commitments []Commitment) []Cover {
	var covers []Cover
	for i := range commitments {
		for _, cover := range commitments[i].covers(i) {
			cover.Left = cover.Committed
			covers = append(covers, cover)
		}
	}
	slices.SortStableFunc(covers, func(a, b Cover) int {
		if c := cmp.Compare(a.tier, b.tier); c != 0 || !a.custom() {
			return c
		}
		return cmp.Or(cmp.Compare(b.Discount, a.Discount), cmp.Compare(a.Name, b.Name))
	})
	return covers
}

// spot machines are never covered.
const spotCapacity = "spot"

// units returns how much of a cover a whole machine uses, and which part of its list price that covers. ok: the cover applies to it.
func (c *Cover) units(m *Running) (units, part float64, ok bool) {
	if m.Price <= 0 || m.CapacityType == spotCapacity || m.Idle && c.custom() || !c.Selector.Selects(m.Offering) {
		return 0, 0, false
	}
	switch c.Measure {
	case Money:
		rate, rated := c.Rates[m.InstanceType]
		switch {
		case rated:
		case c.Rates != nil && c.Discount == 0:
			return 0, 0, false
		default:
			rate = m.Price * (1 - c.Discount)
		}
		return rate, 1, true
	case Instances:
		if c.Flexible == "" {
			return 1, 1, true
		}
		ratio := c.ratio(m.InstanceType)
		return ratio, 1, ratio > 0
	case CPUs:
		units = float64(m.VCPUs) / 1000
	case GiBs:
		units = float64(m.Memory) / (1 << 30)
	}
	part = min(1, units*c.List/m.Price)
	return units, part, part > 0
}

func (c *Cover) custom() bool { return c.tier == 2 || c.tier == 5 }

// quantized makes ratios of decimal prices comparable that differ by rounding alone.
func quantized(ratio float64) float64 { return math.Round(ratio * 1e9) }

// rank is the place of a group in the order in which a cover applies to it. Groups of one rank share what is left equally.
type rank struct {
	first, second float64
	instanceType  string
	idle          int
}

func (a rank) compare(b rank) int {
	return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(a.second, b.second), cmp.Compare(a.instanceType, b.instanceType), cmp.Compare(a.idle, b.idle))
}

// rank of a machine that uses this much. Money covers what saves most first, and among equals what has the lowest rate. Instances of a
// flexible size cover the smallest size first. Custom instances cover the dearest machine first. vCPUs and memory have one price.
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

// uncovered is what isn't covered of a machine: of its list price, its vCPUs and its memory, each from 0 to 1.
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
	// open is the part of its units that isn't covered yet, and need what those take.
	open, need float64
}

// Commitments are an account's commitments beside what runs in it.
type Commitments struct {
	covers []Cover
	// Paid is what the running machines cost an hour beyond what is committed.
	Paid float64
}

// Apply applies commitments to the machines that run by the clouds' published rules, and returns what covers each group. A machine may
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

// apply covers a fraction of what is open of a group.
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

// lack sums up what running machines pay beside commitments, and what they would use of each.
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

// Cheapest is the lowest list price of what the cover may apply to, for one unit of it; zero if nothing of that runs.
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

// Covers returns what is left of each commitment, in the order in which they apply. Don't modify it.
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

// MarginalPrice is what one more machine would cost an hour, beside what runs: its list price without the part that
// unused commitments cover. Of a commitment that is used up it takes what saves less elsewhere, and costs what that costs then. It is
// never negative and never above the list price, doesn't fall when more machines run, and doesn't rise when more is committed.
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
	// What is left may displace what saves less.
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

// Saving is what one machine less of those that run would save an hour: nothing if a commitment that covers it would then
// be unused, its list price if other machines would use it. It is a node's price while it runs, as MarginalPrice is that
// of another one: without the difference, a machine that a commitment covers would be replaced by one that is cheaper
// than the next of its kind, and that one by the covered machine.
func (c *Commitments) Saving(m *Running) float64 {
	if m.Price <= 0 {
		return 0
	}
	saved, selected := 0.0, false
	// What the parts of vCPUs and memory cost, and what of that one less saves.
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

// Unused returns what of each commitment is unused, by the name of its cover and in its unit.
func (c *Commitments) Unused() map[string]float64 {
	unused := make(map[string]float64, len(c.covers))
	for k := range c.covers {
		unused[c.covers[k].Name] = c.covers[k].Left
	}
	return unused
}
