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

// difference of two bills, without rounding errors, which would have machines of the same price replaced; never negative.
func difference(more, less float64) float64 { return max(0, math.Round((more-less)*1e10)/1e10) }

// Group is a number of equal machines that run, or may run.
type Group struct {
	capacity.Priced
	// Idle: they don't run, but are reserved and billed. They are covered after those that run.
	Idle  bool
	Count int64
}

// Covered is the part of a machine's list price that commitments pay for, from 0 to 1, and the hourly cost of that part.
type Covered struct{ Part, Cost float64 }

// rank is the place of a group in the order in which a cover applies to it: those that run before idle ones, which have 1. Groups of one
// rank share the remainder of the cover equally.
type rank struct {
	idle, first, second float64
	instanceType        string
}

func (a rank) compare(b rank) int {
	return cmp.Or(cmp.Compare(a.idle, b.idle), cmp.Compare(a.first, b.first), cmp.Compare(a.second, b.second),
		cmp.Compare(a.instanceType, b.instanceType))
}

// candidate is a group that a cover may apply to: the units that a whole machine uses, and the part of its list price that they cover.
type candidate struct {
	group       int
	rank        rank
	units, part float64
}

// candidate returns a group's place in a cover's order, and whether the cover applies to it. Money covers the groups that save most first,
// and among equals those with the lowest rate. Instances of a flexible size cover the smallest size first. vCPUs and memory have one price.
func (c *Cover) candidate(m *Group, group int) (candidate, bool) {
	units, part, ok := c.units(&m.Priced)
	found := candidate{group: group, units: units, part: part}
	if m.Idle {
		found.rank.idle = 1
	}
	switch {
	case !ok:
	case c.Measure == Money:
		found.rank.first, found.rank.second, found.rank.instanceType = quantized(units/m.Price), quantized(units), m.InstanceType
	case c.Measure == Instances:
		found.rank.first = quantized(units)
	}
	return found, ok
}

// uncovered is the uncovered part of a machine: of its list price, its vCPUs and its memory, each from 0 to 1.
type uncovered [3]float64

// open is the part of a machine's units that a cover may still apply to. part is that of the list price which all units cover.
func (u *uncovered) open(resource int, part float64) float64 {
	if resource > 0 {
		return min(u[resource], u[0]/part)
	}
	return u[0]
}

// take covers a part of a machine's units, and returns the part of its list price that this covers.
func (u *uncovered) take(resource int, taken, part float64) float64 {
	before := u[0]
	if u[0] = max(0, before-taken*part); u[0] < 1e-12 {
		u[0] = 0
	}
	switch {
	case resource > 0:
		u[resource] = max(0, u[resource]-taken)
	case before > 0:
		u[1], u[2] = u[1]*u[0]/before, u[2]*u[0]/before
	}
	return before - u[0]
}

// Commitments are an account's commitments beside its machines. Prices are differences: of the bill with one machine more, or less. They
// aren't safe for concurrent use.
type Commitments struct {
	// Covers are those of the commitments, in the order in which they apply, and Groups the machines. Don't modify them.
	Covers []Cover
	Groups []Group
	// at is the index of a group, by itself without a count.
	at map[Group]int
	// byZone and byCatalog: a selector names zones or catalogs, else machines of all are alike.
	byZone, byCatalog bool

	// orders are the candidates of each cover, in its order; nil while they have to be found.
	orders [][]candidate
	paid   float64
	// marginal are prices of one more machine.
	marginal map[Group]float64
	// open and inserted are of apply, which is called for each price.
	open     []uncovered
	inserted []candidate
}

// NewCommitments returns commitments without a machine.
func NewCommitments(commitments []Commitment) *Commitments {
	c := &Commitments{Covers: coversOf(commitments), at: map[Group]int{}}
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

// group is one machine as commitments distinguish it.
func (c *Commitments) group(m *capacity.Priced) Group {
	return Group{Priced: capacity.Priced{
		Machine: capacity.Machine{Offering: c.Distinct(m.Offering), VCPUs: m.VCPUs, Memory: m.Memory}, Price: m.Price,
	}}
}

// Add adds machines, of which the count may be negative, and returns the index of their group. Shares and prices follow.
func (c *Commitments) Add(g Group) int {
	key := c.group(&g.Priced)
	key.Idle = g.Idle
	i, known := c.at[key]
	if !known {
		i = len(c.Groups)
		c.at[key], c.Groups = i, append(c.Groups, key)
	}
	c.Groups[i].Count = max(0, c.Groups[i].Count+g.Count)
	c.orders = nil
	return i
}

// Remove removes machines of an offering, whatever their price.
func (c *Commitments) Remove(o capacity.Offering, count int64) {
	o = c.Distinct(o)
	for i := range c.Groups {
		if g := &c.Groups[i]; count > 0 && g.Offering == o && !g.Idle {
			n := min(count, g.Count)
			g.Count, count, c.orders = g.Count-n, count-n, nil
		}
	}
}

// Covered reports whether one of the commitments may cover a machine.
func (c *Commitments) Covered(m *capacity.Priced) bool {
	for i := range c.Covers {
		if _, _, ok := c.Covers[i].units(m); ok {
			return true
		}
	}
	return false
}

// Shares returns the covered part of each group by the clouds' published rules, and the unused amount of each cover. Clouds bill by the
// hour and with more details, so that a bill differs.
func (c *Commitments) Shares() (covered []Covered, unused []float64) {
	c.order()
	covered, unused = make([]Covered, len(c.Groups)), make([]float64, len(c.Covers))
	c.apply(nil, covered, unused)
	return covered, unused
}

// MarginalPrice is the hourly cost of one more machine: the bill with it less the bill. It may be above its list price, where it takes a
// cover from one that saves more.
func (c *Commitments) MarginalPrice(m *capacity.Priced) float64 {
	c.order()
	more := c.group(m)
	price, known := c.marginal[more]
	if !known {
		if price = max(0, m.Price); c.Covered(&more.Priced) {
			price = difference(c.apply(&more, nil, nil), c.paid)
		}
		c.marginal[more] = price
	}
	return price
}

// Saving is the hourly saving with one machine less of those that run: the bill less the bill without it. It is never more than another
// one would cost, else a machine would be replaced by its own type: the published order isn't the cheapest, so one less may lower a bill
// by more than one more raises it. A machine that isn't known to run saves as much as one more costs.
func (c *Commitments) Saving(m *capacity.Priced) float64 {
	key, price := c.group(m), c.MarginalPrice(m)
	if !c.Covered(&key.Priced) {
		return price
	}
	i, known := c.at[key]
	if !known || c.Groups[i].Count == 0 { // its list price may have changed since it was launched
		i = slices.IndexFunc(c.Groups, func(g Group) bool { return g.Offering == key.Offering && !g.Idle && g.Count > 0 })
	}
	if i < 0 {
		return price
	}
	c.Groups[i].Count--
	defer func() { c.Groups[i].Count++ }()
	return min(difference(c.paid, c.apply(nil, nil, nil)), price)
}

// order sorts the groups for each cover.
func (c *Commitments) order() {
	if c.orders != nil {
		return
	}
	c.orders, c.marginal = make([][]candidate, len(c.Covers)), map[Group]float64{}
	for k := range c.Covers {
		for i := range c.Groups {
			if candidate, ok := c.Covers[k].candidate(&c.Groups[i], i); ok && c.Groups[i].Count > 0 {
				c.orders[k] = append(c.orders[k], candidate)
			}
		}
		slices.SortStableFunc(c.orders[k], func(a, b candidate) int { return a.rank.compare(b.rank) })
	}
	c.paid = c.apply(nil, nil, nil)
}

// apply applies each cover to the groups in its order, with one more machine beside them. It returns the cost beyond commitments, and sets
// the covered part of each group and the unused amounts.
func (c *Commitments) apply(more *Group, covered []Covered, unused []float64) float64 {
	if more != nil {
		c.Groups = append(c.Groups, Group{Priced: more.Priced, Count: 1})
		defer func() { c.Groups = c.Groups[:len(c.Groups)-1] }()
	}
	c.open = c.open[:0]
	for range c.Groups {
		c.open = append(c.open, uncovered{1, 1, 1})
	}
	for k := range c.Covers {
		cover, remaining, order := &c.Covers[k], c.Covers[k].Committed, c.orders[k]
		var tied []candidate
		price := 0.0
		if covered != nil {
			_, price, _ = c.Unit(cover)
		}
		if more != nil {
			if extra, ok := cover.candidate(more, len(c.Groups)-1); ok {
				at, _ := slices.BinarySearchFunc(order, extra.rank, func(a candidate, r rank) int { return a.rank.compare(r) })
				c.inserted = append(append(append(c.inserted[:0], order[:at]...), extra), order[at:]...)
				order = c.inserted
			}
		}
		for ; len(order) > 0 && remaining > 0; order = order[len(tied):] {
			n := 1
			for n < len(order) && order[n].rank == order[0].rank {
				n++
			}
			tied = order[:n]
			need, fraction := 0.0, 1.0
			for i := range tied {
				t := &tied[i]
				need += t.units * c.open[t.group].open(cover.resource, t.part) * float64(c.Groups[t.group].Count)
			}
			if need > remaining {
				fraction = remaining / need
			}
			for i := range tied {
				t := &tied[i]
				taken := c.open[t.group].open(cover.resource, t.part) * fraction
				part := c.open[t.group].take(cover.resource, taken, t.part)
				if covered != nil && part > 0 {
					covered[t.group].Part += part
					covered[t.group].Cost += t.units * taken * price
				}
			}
			if remaining -= need * fraction; fraction < 1 || remaining < 1e-12*cover.Committed {
				remaining = 0
			}
		}
		if unused != nil {
			unused[k] = remaining
		}
	}
	paid := 0.0
	for i := range c.Groups {
		paid += c.Groups[i].Price * float64(c.Groups[i].Count) * c.open[i][0]
	}
	return paid
}

// Unit returns the most units of a cover that one of the machines uses, zero if none does, and the hourly price of a unit, used or not.
// That isn't known of instances at a discount, none of which runs.
func (c *Commitments) Unit(cover *Cover) (largest, price float64, known bool) {
	if cover.price != nil {
		price, known = *cover.price, true
	}
	for i := range c.Groups {
		g := &c.Groups[i]
		units, _, ok := cover.units(&g.Priced)
		if !ok {
			continue
		}
		largest = max(largest, units)
		if cover.price == nil && units > 0 && g.Count > 0 {
			if list := g.Price / units * (1 - cover.Discount); !known || list < price {
				price, known = list, true
			}
		}
	}
	return largest, price, known
}
