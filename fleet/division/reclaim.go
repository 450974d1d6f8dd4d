// SPDX-License-Identifier: Apache-2.0

package division

import (
	"cmp"
	"math"
	"slices"
	"time"
)

const (
	// DefaultReclaimGracePeriod is how long a borrower has to return amounts that a guaranteed cluster requests, unless the account
	// declares another time.
	DefaultReclaimGracePeriod = 15 * time.Minute
	// RetainFor is how long reclaimed amounts aren't lent again.
	RetainFor = time.Hour
	// deadlinesIn is the number of different deadlines within a grace period: those of requests that come shortly one after the other are the
	// same.
	deadlinesIn = 15
	// maxFor is the number of clusters that a Reclaim names.
	maxFor = 8
)

// Reclaim is the most that a cluster's machines may take of a pool from a time on, because other clusters request the rest.
type Reclaim struct {
	Limit int64
	// For are the first of the clusters that request the rest.
	For []string
	// By is the deadline. Only the result of Follow has one.
	By time.Time
}

// Reclaims are those of a cluster by pool. Each has a lower limit and a later deadline than the one before; a decision has one of a pool.
type Reclaims map[string][]Reclaim

// Limit returns the most that the cluster may keep of a pool once all deadlines have passed, or false if none reclaims the rest.
func (r Reclaims) Limit(pool string) (limit int64, reclaimed bool) {
	return r.Next(pool, 0).Limit, len(r[pool]) > 0
}

// Next returns the first reclaim of a pool that a usage exceeds, or the last one.
func (r Reclaims) Next(pool string, used int64) (next Reclaim) {
	for _, next = range r[pool] {
		if used > next.Limit {
			break
		}
	}
	return next
}

// Follow returns the reclaims of a decision with deadlines by the caller's clock: an amount that is requested for the first time is due a
// grace period from now, and earlier deadlines stay. None is later than that.
func Follow(before, decided Reclaims, now time.Time, gracePeriod time.Duration) Reclaims {
	by := roundUp(now.Add(gracePeriod), max((gracePeriod/deadlinesIn).Truncate(time.Second), time.Second))
	reclaims := make(Reclaims, len(decided))
	for pool := range decided {
		target := decided.Next(pool, 0)
		target.By = by
		var steps []Reclaim
		for _, step := range append(slices.Clone(before[pool]), target) {
			step.Limit, step.For = max(step.Limit, target.Limit), target.For
			if step.By.After(by) {
				step.By = by
			}
			switch last := len(steps) - 1; {
			case step.By.IsZero(): // its deadline can't be read
			case last < 0:
				steps = append(steps, step)
			case step.Limit >= steps[last].Limit:
			case !step.By.After(steps[last].By), !step.By.After(now):
				steps[last].Limit = step.Limit
			default:
				steps = append(steps, step)
			}
		}
		reclaims[pool] = steps
	}
	return reclaims
}

// Retained is the amount of a guarantee that isn't lent until a time, because clusters were asked for it.
type Retained struct {
	Amount int64
	Until  time.Time
}

// setFloors computes the amounts of each cluster's guarantee that aren't lent: those that it uses and requests, those that were reclaimed
// for it lately, and all of an Unbounded pool.
func (d *decider) setFloors() {
	d.floors, d.needs = make(map[string]Amounts, len(d.names)), make(map[string]Amounts, len(d.names))
	d.retained = map[string]map[string]Retained{}
	for _, name := range d.names {
		member, floor, needs := d.Members[name], Amounts{}, Amounts{}
		d.floors[name], d.needs[name] = floor, needs
		if member.Leaving {
			continue
		}
		var wanted Amounts
		for pool := range member.Guaranteed {
			guaranteed := member.guaranteed(pool)
			if d.Limits[pool] == Unbounded {
				floor.set(pool, guaranteed)
				continue
			}
			if wanted == nil {
				wanted = member.wanted()
			}
			needs.set(pool, min(guaranteed, wanted[pool]))
			floor.set(pool, needs[pool])
			if retained := d.Retained[name][pool]; retained.Until.After(d.Now) {
				d.retain(name, pool, retained)
				floor.set(pool, max(needs[pool], min(guaranteed, retained.Amount)))
			}
		}
	}
}

func (d *decider) retain(name, pool string, retained Retained) {
	if d.retained[name] == nil {
		d.retained[name] = map[string]Retained{}
	}
	d.retained[name][pool] = retained
	if d.next.IsZero() || retained.Until.Before(d.next) {
		d.next = retained.Until
	}
}

// guaranteed is a member's guarantee of a pool, used or not.
func (m Member) guaranteed(pool string) int64 { return min(m.Guaranteed[pool], m.maximum(pool)) }

// wanted is the amounts that a member uses and requests, within its own maximum.
func (m Member) wanted() Amounts {
	wanted := m.Used.clone()
	for _, request := range m.Lease.Report.Requests {
		count := request.Count
		for pool, amount := range request.Charges {
			if amount > 0 {
				count = min(count, max(0, m.maximum(pool)-wanted[pool])/amount)
			}
		}
		for pool, amount := range request.Charges {
			wanted.add(pool, max(0, amount*count))
		}
	}
	return wanted
}

// setReclaims asks borrowers for amounts that guaranteed clusters request and that are neither free nor granted without being used.
func (d *decider) setReclaims() {
	d.reclaimedFor, d.borrowers, d.returning = map[string][]string{}, map[string][]*borrower{}, Amounts{}
	for pool := range d.Limits {
		if d.free[pool] >= 0 {
			continue
		}
		for _, name := range d.names {
			if more := d.needs[name][pool] - d.Members[name].Used[pool]; more > 0 {
				d.ask(name, pool, min(more, -d.free[pool]-d.returning[pool]), math.MaxInt64)
				d.retain(name, pool, Retained{
					Amount: max(d.needs[name][pool], d.retained[name][pool].Amount), Until: roundUp(d.Now.Add(RetainFor), time.Minute),
				})
			}
		}
	}
}

// preempt reports whether a launch fits once clusters with a lower priority have returned amounts that aren't guaranteed to them, and asks
// for these.
func (d *decider) preempt(name string, charges Amounts) bool {
	lacking, priority := Amounts{}, int64(d.Members[name].Priority)
	for pool, amount := range charges {
		need := d.need[name][pool] + amount
		more := need - d.target[name][pool]
		if amount < 0 || need > d.Members[name].maximum(pool) {
			return false
		}
		short := more - d.free[pool] - d.returning[pool]
		if more <= 0 || short <= 0 {
			continue
		}
		lacking[pool] = short
		for _, b := range d.borrowersOf(pool) {
			if b.priority < priority {
				short -= b.surplus - b.asked
			}
		}
		if short > 0 {
			return false
		}
	}
	for pool, amount := range lacking {
		d.ask(name, pool, amount, priority)
	}
	return true
}

// roundUp returns the first multiple of a unit that isn't earlier.
func roundUp(t time.Time, unit time.Duration) time.Time {
	if rounded := t.Truncate(unit); rounded.Before(t) {
		return rounded.Add(unit)
	}
	return t
}

// borrower is a cluster that uses more of a pool than is guaranteed to it.
type borrower struct {
	name     string
	priority int64
	// used, and surplus beyond the guarantee.
	used, surplus int64
	// before is the amount that it was asked to return by the last decision, and asked that of this one.
	before, asked int64
}

// borrowersOf returns the borrowers of a pool in the order in which they are asked: by priority, the lowest first, and then by their usage
// beyond their guarantee, the largest first.
func (d *decider) borrowersOf(pool string) []*borrower {
	borrowers, known := d.borrowers[pool]
	if known {
		return borrowers
	}
	for _, name := range d.names {
		member := d.Members[name]
		surplus := member.Used[pool] - member.guaranteed(pool)
		if surplus <= 0 || member.Leaving {
			continue
		}
		b := &borrower{name: name, priority: int64(member.Priority), used: member.Used[pool], surplus: surplus}
		if limit, reclaimed := member.Lease.Reclaims.Limit(pool); reclaimed {
			b.before = min(b.used-limit, b.surplus)
		}
		borrowers = append(borrowers, b)
	}
	slices.SortFunc(borrowers, func(a, b *borrower) int {
		return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(b.surplus, a.surplus), cmp.Compare(a.name, b.name))
	})
	d.borrowers[pool] = borrowers
	return borrowers
}

// ask has borrowers with a lower priority return an amount of a pool for a cluster: those first that were asked before.
func (d *decider) ask(name, pool string, amount, priority int64) {
	before := d.returning[pool]
	for _, again := range []bool{true, false} {
		for _, b := range d.borrowersOf(pool) {
			surplus := b.surplus
			if again {
				surplus = b.before
			}
			if more := min(surplus-b.asked, amount); more > 0 && b.priority < priority {
				b.asked, amount = b.asked+more, amount-more
				d.returning.add(pool, more)
			}
		}
	}
	if d.returning[pool] > before && !slices.Contains(d.reclaimedFor[pool], name) {
		d.reclaimedFor[pool] = append(d.reclaimedFor[pool], name)
	}
}

// reclaims are the amounts that borrowers may keep.
func (d *decider) reclaims() map[string]Reclaims {
	reclaims := map[string]Reclaims{}
	for pool, borrowers := range d.borrowers {
		clusters := d.reclaimedFor[pool][:min(len(d.reclaimedFor[pool]), maxFor)]
		for _, b := range borrowers {
			if b.asked == 0 {
				continue
			}
			if reclaims[b.name] == nil {
				reclaims[b.name] = Reclaims{}
			}
			reclaims[b.name][pool] = []Reclaim{{Limit: b.used - b.asked, For: clusters}}
		}
	}
	return reclaims
}
