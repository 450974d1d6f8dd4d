// SPDX-License-Identifier: Apache-2.0

package division

import (
	"cmp"
	"math"
	"slices"

	"github.com/autonode-io/autonode/capacity"
)

// quantized makes ratios of decimal prices comparable that differ by rounding alone.
func quantized(ratio float64) float64 { return math.Round(ratio * 1e9) }

// difference of two bills, without what is rounding alone and would have machines of the same price replaced; never negative.
func difference(more, less float64) float64 { return max(0, math.Round((more-less)*1e10)/1e10) }

// Running is a machine that runs, or may run, and its list price an hour.
type Running struct {
	capacity.Offering
	Price float64
	// VCPUs in thousandths, and Memory in bytes: as in Machine. Only committed use needs them.
	VCPUs, Memory int64
	// Idle: it doesn't run, but is reserved and billed. It is covered after those that run.
	Idle bool
}

// Group is a number of equal machines that run.
type Group struct {
	Running
	Count int64
}

// Share is the part of a group's list price that a cover pays for, from 0 to 1, and the units of the cover that it uses. Group and Cover are
// indexes.
type Share struct {
	Group, Cover int
	Part, Units  float64
}

// rank is the place of a group in the order in which a cover applies to it. Groups of one rank share the rest of the cover equally.
type rank struct {
	idle          bool
	first, second float64
	instanceType  string
}

func (a rank) compare(b rank) int {
	if a.idle != b.idle {
		if b.idle {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(a.second, b.second), cmp.Compare(a.instanceType, b.instanceType))
}

// candidate is a group that a cover may apply to: the units that a whole machine uses, and the part of its list price that they cover.
type candidate struct {
	group       int
	rank        rank
	units, part float64
}

// candidate returns a group's place in a cover's order; nil if the cover doesn't apply to it. Machines that run come before those that are
// only reserved. Money covers the groups that save most first, and among equals those with the lowest rate. Instances of a flexible size
// cover the smallest size first. vCPUs and memory have one price.
func (c *Cover) candidate(m *Running, group int) *candidate {
	units, part, ok := c.units(m)
	if !ok {
		return nil
	}
	candidate := &candidate{group: group, units: units, part: part, rank: rank{idle: m.Idle}}
	switch c.Measure {
	case Money:
		candidate.rank = rank{m.Idle, quantized(units / m.Price), quantized(units), m.InstanceType}
	case Instances:
		candidate.rank.first = quantized(units)
	case CPUs, GiBs:
	}
	return candidate
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

// Commitments are an account's commitments beside its machines. Prices are differences: of the bill with one machine more, or less. They
// aren't safe for concurrent use.
type Commitments struct {
	covers []Cover
	groups []Group
	at     map[Running]int
	// byZone and byCatalog: a selector names zones or catalogs, else machines of all are alike.
	byZone, byCatalog bool

	// orders are the candidates of each cover, in its order; nil while they have to be found.
	orders   [][]candidate
	paid     float64
	marginal map[Running]marginal
	// open and inserted are of apply, which is called for each price.
	open     []uncovered
	inserted []candidate
}

// marginal is the price of one more machine; covered: commitments may cover it.
type marginal struct {
	price   float64
	covered bool
}

// NewCommitments returns commitments without a machine.
func NewCommitments(commitments []Commitment) *Commitments {
	c := &Commitments{covers: coversOf(commitments), at: map[Running]int{}}
	for i := range commitments {
		c.byZone = c.byZone || len(commitments[i].Selector.Zones) > 0
		c.byCatalog = c.byCatalog || len(commitments[i].Selector.Catalogs) > 0
	}
	return c
}

// Distinct returns an offering without the fields that no commitment distinguishes.
func (c *Commitments) Distinct(o capacity.Offering) capacity.Offering {
	o.Reservation = ""
	if !c.byZone {
		o.Zone = ""
	}
	if !c.byCatalog {
		o.Catalog = ""
	}
	return o
}

// Add adds a number of machines, which may be negative, and returns the index of their group. Shares and prices follow.
func (c *Commitments) Add(m Running, count int64) int {
	m = c.distinct(&m)
	i, known := c.at[m]
	if !known {
		i = len(c.groups)
		c.at[m] = i
		c.groups = append(c.groups, Group{Running: m})
	}
	c.groups[i].Count = max(0, c.groups[i].Count+count)
	c.orders = nil
	return i
}

// Remove removes machines of an offering, whatever their price.
func (c *Commitments) Remove(o capacity.Offering, count int64) {
	o = c.Distinct(o)
	for i := range c.groups {
		if g := &c.groups[i]; count > 0 && g.Offering == o && !g.Idle {
			n := min(count, g.Count)
			g.Count, count, c.orders = g.Count-n, count-n, nil
		}
	}
}

// Covers returns the covers of the commitments, in the order in which they apply, and Groups the machines. Don't modify them.
func (c *Commitments) Covers() []Cover { return c.covers }

// Groups returns the machines; don't modify them.
func (c *Commitments) Groups() []Group { return c.groups }

// Covered reports whether one of the commitments may cover a machine.
func (c *Commitments) Covered(m *Running) bool {
	return slices.ContainsFunc(c.covers, func(cover Cover) bool { return cover.applies(m) })
}

// CoveredBy reports whether the commitment with an index may cover a machine.
func (c *Commitments) CoveredBy(commitment int, m *Running) bool {
	return slices.ContainsFunc(c.covers, func(cover Cover) bool { return cover.at == commitment && cover.applies(m) })
}

// Shares returns which part of each group each cover pays for by the clouds' published rules, and the unused amount of each cover. A
// machine may be covered in part. Clouds bill by the hour and with more details, so that a bill differs.
func (c *Commitments) Shares() (shares []Share, unused []float64) {
	c.order()
	unused = make([]float64, len(c.covers))
	c.apply(nil, -1, func(share Share) { shares = append(shares, share) }, unused)
	return shares, unused
}

// Paid is the machines' hourly cost beyond commitments.
func (c *Commitments) Paid() float64 {
	c.order()
	return c.paid
}

// MarginalPrice is the hourly cost of one more machine: the bill with it less the bill. It may be above its list price, where it takes a
// cover from one that saves more.
func (c *Commitments) MarginalPrice(m *Running) float64 { return c.marginalOf(c.distinct(m)).price }

// distinct is a machine as commitments tell it apart.
func (c *Commitments) distinct(m *Running) Running {
	distinct := *m
	distinct.Offering = c.Distinct(m.Offering)
	return distinct
}

// marginalOf computes a price once for all machines that are alike.
func (c *Commitments) marginalOf(m Running) marginal {
	c.order()
	found, known := c.marginal[m]
	if !known {
		if found = (marginal{max(0, m.Price), c.Covered(&m)}); found.covered {
			found.price = difference(c.apply(&m, -1, nil, nil), c.paid)
		}
		c.marginal[m] = found
	}
	return found
}

// Saving is the hourly saving with one machine less of those that run: the bill less the bill without it. It is never more than another one
// would cost, else a machine would be replaced by its own type: the published order isn't the cheapest, so that one less may lower a bill by
// more than one more raises it. A machine that isn't known to run saves as much as one more costs.
func (c *Commitments) Saving(m *Running) float64 {
	key := c.distinct(m)
	more := c.marginalOf(key)
	if !more.covered {
		return more.price
	}
	i, known := c.at[key]
	if !known || c.groups[i].Count == 0 { // its list price may have changed since it was launched
		i = slices.IndexFunc(c.groups, func(g Group) bool { return g.Offering == key.Offering && !g.Idle && g.Count > 0 })
	}
	if i < 0 {
		return more.price
	}
	return min(difference(c.paid, c.apply(nil, i, nil, nil)), more.price)
}

// order sorts the groups for each cover.
func (c *Commitments) order() {
	if c.orders != nil {
		return
	}
	c.orders, c.marginal = make([][]candidate, len(c.covers)), map[Running]marginal{}
	for k := range c.covers {
		for i := range c.groups {
			if candidate := c.covers[k].candidate(&c.groups[i].Running, i); candidate != nil && c.groups[i].Count > 0 {
				c.orders[k] = append(c.orders[k], *candidate)
			}
		}
		slices.SortStableFunc(c.orders[k], func(a, b candidate) int { return a.rank.compare(b.rank) })
	}
	c.paid = c.apply(nil, -1, nil, nil)
}

// apply applies each cover to the groups in its order, with one more machine, and one less of a group if less isn't negative. It returns the
// cost beyond commitments, calls each with the shares, and sets the unused amounts.
func (c *Commitments) apply(more *Running, less int, each func(Share), unused []float64) float64 {
	c.open = c.open[:0]
	for range len(c.groups) + 1 {
		c.open = append(c.open, uncovered{1, 1, 1})
	}
	count := func(group int) float64 {
		switch group {
		case len(c.groups):
			return 1
		case less:
			return float64(c.groups[group].Count - 1)
		}
		return float64(c.groups[group].Count)
	}
	for k := range c.covers {
		cover, rest, order := &c.covers[k], c.covers[k].Committed, c.orders[k]
		var tied []candidate
		if more != nil {
			if extra := cover.candidate(more, len(c.groups)); extra != nil {
				at, _ := slices.BinarySearchFunc(order, extra.rank, func(a candidate, r rank) int { return a.rank.compare(r) })
				c.inserted = append(append(append(c.inserted[:0], order[:at]...), *extra), order[at:]...)
				order = c.inserted
			}
		}
		for ; len(order) > 0 && rest > 0; order = order[len(tied):] {
			n := 1
			for n < len(order) && order[n].rank == order[0].rank {
				n++
			}
			tied = order[:n]
			need, fraction := 0.0, 1.0
			for i := range tied {
				need += tied[i].units * c.open[tied[i].group].open(cover.Measure, tied[i].part) * count(tied[i].group)
			}
			if need > rest {
				fraction = rest / need
			}
			for i := range tied {
				of := &tied[i]
				taken := c.open[of.group].open(cover.Measure, of.part) * fraction
				part := c.open[of.group].take(cover.Measure, taken, of.part)
				if each != nil && part > 0 {
					each(Share{Group: of.group, Cover: k, Part: part, Units: of.units * taken * count(of.group)})
				}
			}
			if rest -= need * fraction; fraction < 1 || rest < 1e-12*cover.Committed {
				rest = 0
			}
		}
		if unused != nil {
			unused[k] = rest
		}
	}
	paid := 0.0
	for i := range c.groups {
		paid += c.groups[i].Price * count(i) * c.open[i].price
	}
	if more != nil {
		paid += more.Price * c.open[len(c.groups)].price
	}
	return paid
}

// UnitPrice is the hourly price of one unit of a cover, used or not; false if that isn't known: of instances at a discount, none of which
// runs.
func (c *Commitments) UnitPrice(cover *Cover) (price float64, known bool) {
	switch {
	case cover.Measure == Money:
		return 1, true
	case cover.Measure == CPUs:
		return cover.CPU.Price, true
	case cover.Measure == GiBs:
		return cover.Memory.Price, true
	case cover.Price != nil:
		return *cover.Price, true
	}
	for i := range c.groups {
		if units, _, ok := cover.units(&c.groups[i].Running); ok && units > 0 && c.groups[i].Count > 0 {
			if list := c.groups[i].Price / units * (1 - cover.discount); !known || list < price {
				price, known = list, true
			}
		}
	}
	return price, known
}

// Largest is the most of a cover that one of the machines would use; zero if none would.
func (c *Commitments) Largest(cover *Cover) float64 {
	largest := 0.0
	for i := range c.groups {
		if units, _, ok := cover.units(&c.groups[i].Running); ok {
			largest = max(largest, units)
		}
	}
	return largest
}
