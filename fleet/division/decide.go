// SPDX-License-Identifier: Apache-2.0

package division

import (
	"cmp"
	"container/heap"
	"maps"
	"math/bits"
	"slices"
	"time"
)

// Decision is the next record, with hints for leases.
type Decision struct {
	// Record is to replace the account's before any lease is written.
	Record map[string]Grant
	// Available is about how much each cluster may hold if it requests more. It is a hint, rounded down so that leases don't
	// change with each machine of another cluster.
	Available map[string]Amounts
	// Attainable is the most that each cluster might be granted in time, if others' machines went.
	Attainable map[string]Amounts
	// Waiting are the amounts of requests that don't fit now, by pool.
	Waiting Amounts
	// Reclaims are those of borrowers, by cluster.
	Reclaims map[string]Reclaims
	// Retained are the amounts of guarantees that aren't lent again yet, to be recorded with Record.
	Retained map[string]map[string]Retained
	// Next is when the decision changes by itself; zero if it doesn't.
	Next time.Time
}

// Decide decides each cluster's grant. At no time, from wherever the inputs were read, does the sum of
// Granted over the clusters exceed a limit that it didn't exceed before.
//
// It aims at targets: each cluster's usage and guarantee, and of the rest whole requests, in the order of
// priorities, and among equals first for the cluster with the smallest dominant share
// (https://www.usenix.org/conference/nsdi11/dominant-resource-fairness-fair-allocation-multiple-resource-types). Free amounts
// are granted at once. For the rest, clusters that hold more than their target are asked to give it back, and it is granted in
// a later decision, when they have acknowledged that. Amounts that a guarantee or a preemption has precedence for are reclaimed
// from clusters that use them: see Reclaim.
func Decide(a Account) Decision {
	a.Members = maps.Clone(a.Members)
	d := &decider{Account: a, record: make(map[string]Grant, len(a.Record)), waiting: Amounts{}, joined: map[string]Amounts{}}
	d.confirm()
	d.setTargets()
	d.grant()
	d.reclaim()
	return Decision{
		Record: d.record, Available: d.hint(), Attainable: d.attainable, Waiting: d.waiting, Reclaims: d.reclaims(), Retained: d.retained,
		Next: d.next,
	}
}

type decider struct {
	Account
	record map[string]Grant
	// names of the members that can be granted something, ordered.
	names []string
	// base is each cluster's amounts without its requests, target with those that fit, and need is the target without the unneeded
	// guarantee.
	base, target, need map[string]Amounts
	// order of the requests that fit.
	order []fitting
	// free is the limits less the targets, and available the limits less the grants.
	free, available Amounts
	waiting         Amounts
	// short are the pools of which something has to be returned.
	short map[string]bool
	// joined are the amounts that the leases of joining clusters allow already.
	joined map[string]Amounts

	// attainable is Decision.Attainable.
	attainable map[string]Amounts
	next       time.Time

	// needs are the amounts that clusters use and request of their guarantees, and floors those that aren't lent.
	floors, needs map[string]Amounts
	// retained is Decision.Retained, and reclaimedFor the clusters that request amounts of pools that others are to return.
	retained     map[string]map[string]Retained
	reclaimedFor map[string][]string
	// borrowers of pools of which something is reclaimed, and the amounts of those that they are to return.
	borrowers map[string][]*borrower
	returning Amounts
}

// fitting is a launch that a cluster's target has room for.
type fitting struct {
	cluster string
	charges Amounts
}

// confirm takes holders' acknowledgements into the record.
func (d *decider) confirm() {
	for name, grant := range d.Record {
		if member, ok := d.Members[name]; !ok || !member.Gone {
			d.record[name] = grant.clone()
		}
	}
	for name, member := range d.Members {
		if member.Gone {
			continue
		}
		grant, known := d.record[name]
		member.Used = member.bounded(grant.Granted)
		d.Members[name] = member
		if !known {
			if member.Lease == nil || member.Leaving {
				continue
			}
			// Its holder may have a grant of an account that was deleted. Only that of this very object can be known, so no other
			// operator may write it any more when it is read.
			grant = Grant{Sequence: max(d.First, member.Lease.Sequence), Limit: Amounts{}, Granted: member.Used.clone()}
			grant.Granted.Raise(member.Lease.Limit)
			grant.Granted.Raise(member.Lease.Granted)
			d.joined[name] = member.Lease.Limit
		}
		switch {
		case member.Lease == nil:
		case member.Lease.ID != grant.Lease:
			// The holder may still spend by the object that is gone: Granted stays.
			grant.Lease = member.Lease.ID
			grant.Sequence++
		case member.Lease.Report.Sequence == grant.Sequence:
			d.acknowledged(name, &grant)
		}
		d.record[name] = grant
		if member.Lease != nil {
			d.names = append(d.names, name)
		}
	}
	slices.Sort(d.names)
}

// acknowledged lowers the grant to the amounts that the holder keeps. It raises nothing: the report may be older than one that was counted,
// and the amounts beyond the grant returned and granted to others since, or it may lie. Beyond the grant only Machines count.
func (d *decider) acknowledged(name string, grant *Grant) {
	member := d.Members[name]
	reserved, used := grant.Limit.clone(), member.Used.clone()
	reserved.Raise(member.Lease.Report.Reserved)
	for pool, amount := range reserved {
		reserved.set(pool, min(amount, grant.Granted[pool]))
	}
	if len(member.Lease.Report.Requests) > 0 { // else it needs no more than its Machines take
		for pool, amount := range member.Lease.Report.Used {
			used.set(pool, max(used[pool], min(amount, reserved[pool])))
		}
	}
	grant.Granted, member.Used = reserved, used
	d.Members[name] = member
}

// taken is a cluster's amounts that count against the pools.
func (d *decider) taken(name string) Amounts {
	taken := d.record[name].Granted.clone()
	taken.Raise(d.Members[name].Used)
	return taken
}

// remaining returns the limits less the amounts of all recorded clusters; a negative amount if they exceed one.
func (d *decider) remaining(amounts func(name string) Amounts) Amounts {
	remaining := d.Limits.clone()
	count := func(name string) {
		for pool, amount := range amounts(name) {
			remaining.add(pool, -amount)
		}
	}
	for name := range d.record {
		count(name)
	}
	for name, member := range d.Members {
		if _, recorded := d.record[name]; !recorded && !member.Gone {
			count(name)
		}
	}
	return remaining
}

// setTargets chooses the requests that fit if all that is unspent returned.
func (d *decider) setTargets() {
	d.base, d.target, d.need = map[string]Amounts{}, map[string]Amounts{}, map[string]Amounts{}
	d.setFloors()
	for _, name := range d.names {
		member, base := d.Members[name], d.floors[name].clone()
		base.Raise(member.Used)
		d.base[name], d.target[name], d.need[name] = base, base.clone(), member.Used.clone()
	}
	d.free = d.remaining(func(name string) Amounts {
		if base, ok := d.base[name]; ok {
			return base
		}
		return d.taken(name) // it has no lease that could be changed
	})
	d.setAttainable()
	d.setReclaims()
	q := queue{}
	for _, name := range d.names {
		if member := d.Members[name]; !member.Leaving {
			q = append(q, &queued{name: name, priority: member.Priority, share: d.share(name), requests: slices.Clone(member.Lease.Report.Requests)})
		}
	}
	heap.Init(&q)
	for q.Len() > 0 {
		item := q[0]
		charges, ok := first(item, d.fits)
		if !ok && d.Preemption {
			charges, ok = first(item, d.preempt)
		}
		if !ok {
			d.wait(item.requests)
			heap.Pop(&q)
			continue
		}
		d.take(item.name, charges)
		item.share = d.share(item.name)
		heap.Fix(&q, 0)
	}
}

// setAttainable computes the most that each cluster might be granted in time: its maximum, and the amounts that are neither guaranteed to
// others nor granted to clusters whose leases can't be changed.
func (d *decider) setAttainable() {
	remaining := d.remaining(func(name string) Amounts {
		if _, ok := d.base[name]; ok {
			return d.floors[name]
		}
		return d.taken(name)
	})
	d.attainable = make(map[string]Amounts, len(d.names))
	for _, name := range d.names {
		attainable, floor, member := Amounts{}, d.floors[name], d.Members[name]
		if !member.Leaving {
			for pool := range d.Limits {
				attainable.set(pool, max(0, min(remaining[pool]+floor[pool], member.maximum(pool))))
			}
		}
		d.attainable[name] = attainable
	}
}

// take raises a cluster's target by a launch that fits.
func (d *decider) take(name string, charges Amounts) {
	need, target := d.need[name], d.target[name]
	for pool, amount := range charges {
		need.add(pool, amount)
		if more := need[pool] - target[pool]; more > 0 {
			d.free.add(pool, -more)
			target.add(pool, more)
		}
	}
	d.order = append(d.order, fitting{cluster: name, charges: charges})
}

// first takes the first of a cluster's requests that fits.
func first(item *queued, fits func(name string, charges Amounts) bool) (Amounts, bool) {
	for i := range item.requests {
		if request := &item.requests[i]; request.Count > 0 && fits(item.name, request.Charges) {
			request.Count--
			return request.Charges, true
		}
	}
	return nil, false
}

func (d *decider) fits(name string, charges Amounts) bool {
	for pool, amount := range charges {
		need := d.need[name][pool] + amount
		more := need - d.target[name][pool]
		if amount < 0 || need > d.Members[name].maximum(pool) || more > 0 && more > d.free[pool] {
			return false
		}
	}
	return true
}

func (d *decider) wait(requests []Request) {
	for _, request := range requests {
		for pool, amount := range request.Charges {
			d.waiting.add(pool, amount*max(request.Count, 0))
		}
	}
}

// share is a cluster's dominant share of the amounts that aren't guaranteed to it.
func (d *decider) share(name string) float64 {
	share := 0.0
	for pool, amount := range d.need[name] {
		if limit := d.Limits[pool]; limit > 0 {
			share = max(share, float64(amount-d.Members[name].Guaranteed[pool])/float64(limit))
		}
	}
	return share
}

// grant raises Limit and Granted to the targets, as far as the grants of all clusters leave room.
func (d *decider) grant() {
	d.available = d.remaining(d.taken)
	d.short = map[string]bool{}
	for pool := range d.Limits {
		d.short[pool] = d.available[pool] < 0
	}
	// The sum of the guarantees may exceed a limit: then the higher priority has its own first.
	byPriority := slices.Clone(d.names)
	slices.SortStableFunc(byPriority, func(a, b string) int { return cmp.Compare(d.Members[b].Priority, d.Members[a].Priority) })
	for _, name := range byPriority {
		for pool, amount := range d.base[name] {
			if room := d.room(name, pool); amount > room {
				d.short[pool] = true
				amount = room
			}
			d.raise(name, pool, amount)
		}
	}
	need := make(map[string]Amounts, len(d.names))
	for _, fitting := range d.order {
		name := fitting.cluster
		if need[name] == nil {
			need[name] = d.Members[name].Used.clone()
		}
		enough := true
		for pool, amount := range fitting.charges {
			if need[name][pool]+amount > d.room(name, pool) {
				d.short[pool] = true
				enough = false
			}
		}
		if !enough {
			d.wait([]Request{{Charges: fitting.charges, Count: 1}})
			continue
		}
		for pool, amount := range fitting.charges {
			need[name].add(pool, amount)
			d.raise(name, pool, need[name][pool])
		}
	}
}

// room is how much of a pool a cluster can be granted now. Its Machines' charges beyond its grant count as available to it only while the
// pool isn't exceeded: the count may be old, and the rest granted to others since. While it is exceeded, amounts that a cluster was asked
// back stay asked back: if a record was lost, they may be granted to others, too.
func (d *decider) room(name, pool string) int64 {
	granted, available := d.record[name].Granted[pool], d.available[pool]
	if available < 0 {
		return max(d.record[name].Limit[pool], d.joined[name][pool])
	}
	return max(granted, d.Members[name].Used[pool]) + available
}

// raise raises a cluster's grant of a pool. There has to be room.
func (d *decider) raise(name, pool string, amount int64) {
	grant := d.record[name]
	if taken := max(grant.Granted[pool], d.Members[name].Used[pool]); amount > taken {
		d.available.add(pool, taken-amount)
	}
	grant.Limit.set(pool, max(grant.Limit[pool], amount))
	grant.Granted.set(pool, max(grant.Granted[pool], amount))
}

// reclaim requests back amounts beyond clusters' targets, where something has to be returned. Granted stays until
// the holder acknowledges.
func (d *decider) reclaim() {
	for _, name := range d.names {
		member, grant, before := d.Members[name], d.record[name], d.Record[name]
		for pool, asked := range grant.Limit {
			target := d.target[name][pool]
			if asked > target && (d.short[pool] || member.Idle || member.Leaving || asked > member.maximum(pool)) {
				grant.Limit.set(pool, target)
			}
		}
		if !grant.Limit.Equal(before.Limit) && grant.Sequence == before.Sequence {
			grant.Sequence++
		}
		d.record[name] = grant
	}
}

// hint adds to each cluster's target the amounts that no target needs, and those that others have requested and don't use yet: it might be
// served before them.
func (d *decider) hint() map[string]Amounts {
	contested := Amounts{}
	for _, name := range d.names {
		for pool, amount := range d.target[name] {
			contested.add(pool, amount-d.base[name][pool])
		}
	}
	available := make(map[string]Amounts, len(d.names))
	for _, name := range d.names {
		member, hint := d.Members[name], Amounts{}
		for pool := range d.Limits {
			amount := max(d.record[name].Limit[pool], d.target[name][pool])
			switch {
			case d.free[pool] < 0 && (member.Guaranteed[pool] > 0 || slices.Contains(d.reclaimedFor[pool], name)):
				amount = d.record[name].Limit[pool] // the rest comes once others have returned it: nothing is to be launched into it before
			case !member.Leaving && d.free[pool] >= 0:
				others := contested[pool] - (d.target[name][pool] - d.base[name][pool])
				amount = max(amount, min(d.target[name][pool]+roughly(d.free[pool]+others), member.maximum(pool)))
			}
			hint.set(pool, amount)
		}
		available[name] = hint
	}
	return available
}

// roughly rounds down to a power of two.
func roughly(amount int64) int64 {
	if amount <= 0 {
		return 0
	}
	return 1 << (bits.Len64(uint64(amount)) - 1)
}

// Lag reports whether a lease is to be written, for a grant that is recorded. The write has to fail if the object has
// changed since the lease was read.
func (g Grant) Lag(lease Lease) bool {
	return lease.ID == g.Lease && lease.Sequence < g.Sequence
}
