// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"cmp"
	"maps"
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
)

// Reclaim asks a borrower to have at most Keep of a pool by a time. Both are recorded: the time stays, and Keep falls never without a later
// one.
type Reclaim struct {
	Keep int64
	By   time.Time
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
	d.reclaims, d.retained = map[string]map[string][]Reclaim{}, map[string]map[string]Retained{}
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
	d.due(retained.Until)
}

// guaranteed is a member's guarantee of a pool, used or not.
func (m Member) guaranteed(pool string) int64 { return min(m.Guaranteed[pool], m.most(pool)) }

// wanted is the amounts that a member uses and requests, within its own maximum.
func (m Member) wanted() Amounts {
	wanted := m.Used.clone()
	for _, request := range m.Lease.Report.Requests {
		count := request.Count
		for pool, amount := range request.Charges {
			if amount > 0 {
				count = min(count, max(0, m.most(pool)-wanted[pool])/amount)
			}
		}
		for pool, amount := range request.Charges {
			wanted.add(pool, max(0, amount*count))
		}
	}
	return wanted
}

// setReclaims asks borrowers for amounts that guaranteed clusters request and that are neither free nor held without being used.
func (d *decider) setReclaims() {
	d.overdrawn, d.reclaimedFor = map[string]bool{}, map[string][]string{}
	unit := max((d.gracePeriod() / deadlinesIn).Truncate(time.Second), time.Second)
	by := roundUp(d.Now.Add(d.gracePeriod()), unit)
	for pool := range d.Limits {
		if d.free[pool] >= 0 {
			continue
		}
		d.overdrawn[pool] = true
		demand := int64(0)
		for _, name := range d.names {
			if more := d.needs[name][pool] - d.Members[name].Used[pool]; more > 0 {
				demand += more
				d.reclaimedFor[pool] = append(d.reclaimedFor[pool], name)
				d.retain(name, pool, Retained{
					Amount: max(d.needs[name][pool], d.retained[name][pool].Amount), Until: roundUp(d.Now.Add(RetainFor), time.Minute),
				})
			}
		}
		d.ask(pool, min(demand, -d.free[pool]), by)
	}
}

func (d *decider) gracePeriod() time.Duration {
	return cmp.Or(d.ReclaimGracePeriod, DefaultReclaimGracePeriod)
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
	name string
	// used, and surplus beyond the guarantee.
	used, surplus int64
	priority      int32
	// asked is the amount that it is asked to return.
	asked int64
}

// ask divides the amount to be returned of a pool among borrowers: as they were asked before, then by priority, the lowest first, and then
// by their usage beyond their guarantee, the largest first.
func (d *decider) ask(pool string, amount int64, by time.Time) {
	var borrowers []*borrower
	for _, name := range d.names {
		member := d.Members[name]
		if surplus := member.Used[pool] - member.guaranteed(pool); surplus > 0 && !member.Leaving {
			borrowers = append(borrowers, &borrower{name: name, used: member.Used[pool], surplus: surplus, priority: member.Priority})
		}
	}
	slices.SortFunc(borrowers, func(a, b *borrower) int {
		return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(b.surplus, a.surplus), cmp.Compare(a.name, b.name))
	})
	for _, b := range borrowers {
		if steps := d.Reclaims[b.name][pool]; len(steps) > 0 {
			b.asked = max(0, min(b.used-steps[len(steps)-1].Keep, b.surplus, amount))
			amount -= b.asked
		}
	}
	for _, b := range borrowers {
		more := min(b.surplus-b.asked, amount)
		amount -= more
		if b.asked += more; b.asked == 0 {
			continue
		}
		if d.reclaims[b.name] == nil {
			d.reclaims[b.name] = map[string][]Reclaim{}
		}
		d.reclaims[b.name][pool] = follow(d.Reclaims[b.name][pool], b.used, b.used-b.asked, by)
	}
}

// follow returns the steps, each with a lower amount and a later deadline, that lead a borrower from its usage to the amount that it may
// keep. The deadlines of earlier ones stay; an amount beyond them has a deadline of its own.
func follow(before []Reclaim, used, keep int64, by time.Time) (steps []Reclaim) {
	for _, step := range before {
		step.Keep = max(step.Keep, keep)
		if step.Keep < used {
			steps, used = append(steps, step), step.Keep
		}
	}
	switch last := len(steps) - 1; {
	case used <= keep:
	case last >= 0 && !steps[last].By.Before(by):
		steps[last].Keep = keep
	default:
		steps = append(steps, Reclaim{Keep: keep, By: by})
	}
	return steps
}

// keepReclaimed lowers how much borrowers may take by launches to the amounts that they may keep.
func (d *decider) keepReclaimed(keep map[string]Amounts) {
	for name, pools := range d.reclaims {
		if keep[name] == nil {
			keep[name] = Amounts{}
		}
		for pool, steps := range pools {
			amount := steps[len(steps)-1].Keep
			if before, held := keep[name][pool]; held {
				amount = min(before, amount)
			}
			keep[name][pool] = amount
		}
	}
}

// reclaimedForAll returns the clusters of pools that borrowers are asked for.
func (d *decider) reclaimedForAll() map[string][]string {
	asked := map[string]bool{}
	for _, pools := range d.reclaims {
		for pool := range pools {
			asked[pool] = true
		}
	}
	maps.DeleteFunc(d.reclaimedFor, func(pool string, _ []string) bool { return !asked[pool] })
	return d.reclaimedFor
}
