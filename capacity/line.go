// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"cmp"
	"slices"
	"time"
)

const (
	// HoldAfter is how long a request that doesn't fit waits before room is held for it.
	HoldAfter = time.Minute
	// HoldWithout is how long room is held without more of it becoming free.
	HoldWithout = 10 * time.Minute
	// HoldMost is how long room is held in all.
	HoldMost = time.Hour
	// HoldRest is how long nothing is held of the pools that a request lacked whose hold has ended.
	HoldRest = 10 * time.Minute
)

// Place is a cluster's place in the line: a request that doesn't fit although it would if others' machines went. Small requests would
// always be served before a large one, since the capacity of one removed machine is enough for them. So freed capacity is held for the
// first in the line, until the request is served. A hold ends after a time, so that one that is never served doesn't keep others from
// launching for good.
type Place struct {
	// Charges of one launch, and Count of the launches that were requested.
	Charges Amounts
	Count   int64
	// Since is when the cluster took the place.
	Since time.Time
	// Held is since when room is held; zero if none is. Gained is when a part of it last became free, and Lacking the missing amounts.
	Held, Gained time.Time
	Lacking      Amounts
	// Rests is until when the cluster has no other place, because its hold has ended unserved; zero if it has not.
	Rests time.Time
}

func (p *Place) clone() *Place {
	c := *p
	c.Charges, c.Lacking = p.Charges.clone(), p.Lacking.clone()
	return &c
}

// IsHeld reports whether room is held.
func (p *Place) IsHeld() bool { return !p.Held.IsZero() && p.Rests.IsZero() }

// rank orders places of one priority: those for which room is held already come first.
func (p *Place) rank() int {
	if p.IsHeld() {
		return 0
	}
	return 1
}

// inLine is a place in the order of the line.
type inLine struct {
	*Place
	name     string
	priority int32
}

// enterLine finds the places of the clusters. A request keeps its place while it is reported, until one of its launches is served.
func (d *decider) enterLine() {
	d.places, d.lacking, d.resting = map[string]*Place{}, map[string]int32{}, map[string]int32{}
	d.served, d.ownLacking = map[string]Amounts{}, map[string]Amounts{}
	for name, place := range d.Line {
		member, known := d.Members[name]
		if !known || member.Gone || !place.Rests.After(d.Now) {
			continue
		}
		d.places[name] = place.clone()
		d.due(place.Rests)
		d.rest(d.places[name], member.Priority)
	}
	for _, name := range d.names {
		member := d.Members[name]
		if d.places[name] != nil || member.Leaving {
			continue
		}
		place := d.kept(name, member.Lease.Report.Requests)
		if place == nil {
			place = d.newPlace(name, member.Lease.Report.Requests)
		}
		if place == nil {
			continue
		}
		d.places[name] = place
		if begins := place.Since.Add(HoldAfter); begins.After(d.Now) {
			d.due(begins)
			continue
		}
		d.line = append(d.line, &inLine{place, name, member.Priority})
	}
	slices.SortFunc(d.line, func(a, b *inLine) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.rank(), b.rank()), a.Since.Compare(b.Since), cmp.Compare(a.name, b.name))
	})
}

// raise records a priority of a pool, unless there is a higher one.
func raise(priorities map[string]int32, pool string, priority int32) {
	if before, known := priorities[pool]; !known || priority > before {
		priorities[pool] = priority
	}
}

// kept returns the place that was recorded, if its request is still reported and none of its launches was served; nil otherwise.
func (d *decider) kept(name string, requests []Request) *Place {
	place, recorded := d.Line[name]
	if !recorded || !place.Rests.IsZero() {
		return nil
	}
	for _, request := range requests {
		if request.Count >= place.Count && request.Count > 0 && request.Charges.Equal(place.Charges) {
			kept := place.clone()
			kept.Count = request.Count
			return kept
		}
	}
	return nil
}

// newPlace returns the place of the oldest request that doesn't fit and may in time; nil for none.
func (d *decider) newPlace(name string, requests []Request) *Place {
	for _, request := range requests {
		if request.Count > 0 && d.canFit(name, request.Charges) && !d.fits(name, request.Charges) {
			return &Place{Charges: request.Charges.clone(), Count: request.Count, Since: d.Now, Lacking: Amounts{}}
		}
	}
	return nil
}

// canFit reports whether a launch would fit if all machines went but those that are guaranteed to others.
func (d *decider) canFit(name string, charges Amounts) bool {
	for pool, amount := range charges {
		if amount < 0 || amount > d.most[name][pool] {
			return false
		}
	}
	return true
}

// setMost computes the most that each cluster might be granted in time: its maximum, and the amounts that are neither guaranteed to others
// nor held by clusters whose leases can't be changed.
func (d *decider) setMost() {
	left := d.left(func(name string) Amounts {
		if _, ok := d.base[name]; ok {
			return d.floors[name]
		}
		return d.taken(name)
	})
	d.most = make(map[string]Amounts, len(d.names))
	for _, name := range d.names {
		most, floor, member := Amounts{}, d.floors[name], d.Members[name]
		if !member.Leaving {
			for pool := range d.Limits {
				most.set(pool, max(0, min(left[pool]+floor[pool], member.most(pool))))
			}
		}
		d.most[name] = most
	}
}

// serveLine serves the first of the line down to a priority, or holds room for it. It reports whether there was one.
func (d *decider) serveLine(priority int32, items map[string]*queued) bool {
	if len(d.line) == 0 || d.line[0].priority < priority {
		return false
	}
	first := d.line[0]
	d.line = d.line[1:]
	lacking, own, blocked := d.lacks(first)
	switch {
	case blocked:
		first.Held, first.Gained, first.Lacking = time.Time{}, time.Time{}, Amounts{}
	case !d.hold(first, lacking):
		first.Rests = d.Now.Add(HoldRest)
		d.due(first.Rests)
		d.rest(first.Place, first.priority)
	case own:
		d.ownLacking[first.name] = lacking
	case len(lacking) == 0:
		d.serve(first, items[first.name])
	default:
		for pool, amount := range first.Charges {
			if more := d.need[first.name][pool] + amount - d.target[first.name][pool]; more > 0 {
				d.free.add(pool, -more)
			}
		}
		for pool := range lacking {
			raise(d.lacking, pool, first.priority)
		}
	}
	return true
}

// rest records the pools of which nothing is held for a while.
func (d *decider) rest(place *Place, priority int32) {
	for pool := range place.Lacking {
		raise(d.resting, pool, priority)
	}
}

// lacks returns the amounts that a place is missing; own, if the cluster's own machines take them of its maximum, so that nothing of other
// clusters helps. It is blocked while nothing may be held for it: room is held for another one that it would need, or a hold of the missing
// amounts has just ended.
func (d *decider) lacks(of *inLine) (lacking Amounts, own, blocked bool) {
	lacking, ownLacking := Amounts{}, Amounts{}
	if !d.canFit(of.name, of.Charges) {
		return nil, false, true
	}
	for pool, amount := range of.Charges {
		need := d.need[of.name][pool] + amount
		if over := need - d.Members[of.name].most(pool); over > 0 {
			ownLacking[pool] = over
		}
		more := need - d.target[of.name][pool]
		if more <= 0 {
			continue
		}
		if _, held := d.lacking[pool]; held {
			return nil, false, true
		}
		if short := more - max(0, d.free[pool]); short > 0 {
			if priority, rests := d.resting[pool]; rests && priority >= of.priority {
				return nil, false, true
			}
			lacking.set(pool, short)
		}
	}
	if len(ownLacking) > 0 {
		return ownLacking, true, false
	}
	return lacking, false, false
}

// hold begins or continues a hold, and reports whether it goes on.
func (d *decider) hold(of *inLine, lacking Amounts) bool {
	if of.Held.IsZero() {
		of.Held, of.Gained, of.Lacking = d.Now, d.Now, lacking.clone()
	}
	for pool, before := range of.Lacking {
		if lacking[pool] < before {
			of.Gained = d.Now
			of.Lacking.set(pool, lacking[pool])
		}
	}
	for pool, amount := range lacking {
		if _, before := of.Lacking[pool]; !before {
			of.Lacking.set(pool, amount)
		}
	}
	ends := of.Gained.Add(HoldWithout)
	if most := of.Held.Add(HoldMost); most.Before(ends) {
		ends = most
	}
	if !ends.After(d.Now) {
		return false
	}
	d.due(ends)
	return true
}

// serve grants a place its request, before others.
func (d *decider) serve(first *inLine, item *queued) {
	if item != nil {
		for i := range item.requests {
			if request := &item.requests[i]; request.Count > 0 && request.Charges.Equal(first.Charges) {
				request.Count--
				break
			}
		}
	}
	before := d.target[first.name].clone()
	d.take(first.name, first.Charges)
	served := Amounts{}
	for pool, amount := range d.target[first.name] {
		served.set(pool, amount-before[pool])
	}
	d.served[first.name] = served
	if item != nil {
		item.share = d.share(first.name)
	}
}

// keep is how much the clusters may take by launches while room is held: nothing of freed capacity, but their guarantees, and their
// requests that were first in the line. A Karpenter would reuse the capacity of a removed machine at once, before the operator can ask for
// it.
func (d *decider) keep() map[string]Amounts {
	keep := map[string]Amounts{}
	defer d.keepReclaimed(keep)
	if len(d.lacking)+len(d.ownLacking) == 0 {
		return keep
	}
	for _, name := range d.names {
		member, floor, kept := d.Members[name], d.floors[name], Amounts{}
		for pool, priority := range d.lacking {
			if member.Priority > priority {
				continue
			}
			kept[pool] = floor[pool]
			if d.served[name][pool] > 0 {
				kept[pool] = max(floor[pool], d.need[name][pool])
			}
		}
		for pool := range d.ownLacking[name] {
			kept[pool] = max(0, member.most(pool)-d.places[name].Charges[pool])
		}
		keep[name] = kept
	}
	return keep
}

// due records when the decision changes by itself.
func (d *decider) due(at time.Time) {
	if d.next.IsZero() || at.Before(d.next) {
		d.next = at
	}
}

// recordLine returns the line to record.
func (d *decider) recordLine() map[string]Place {
	line := make(map[string]Place, len(d.places))
	for name, place := range d.places {
		line[name] = *place
	}
	return line
}
