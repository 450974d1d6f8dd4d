// SPDX-License-Identifier: Apache-2.0

package division

import (
	"slices"
	"time"
)

// InFlight is the longest that a request which creates a Machine may take to have its effect. Karpenter sends one within 10 s after it has
// checked that it holds its Lease (leadership.Fence), and an API server gives up a write after 34 s (requestTimeoutUpperBound in
// k8s.io/apiserver). A launch that was given up counts for so long, and a process that succeeds another one neither launches nor
// acknowledges anything before.
const InFlight = time.Minute

// Holder keeps what one process of Karpenter spends within its lease. It isn't safe for concurrent use.
type Holder struct {
	// from is when it may begin: what an earlier process has tried has come by then, or never will.
	from time.Time
	// lease is the ID of the object that the API server had when it was last asked.
	lease string
	// sequence of the newest grant observed, and what it allows.
	sequence int64
	allowed  Amounts
	upTo     Amounts
	// reclaims are those of the lease.
	reclaims Reclaims

	launches map[string]*launch
	spent    Amounts
	// vacant is the part of spent that launches may take over.
	vacant   Amounts
	requests map[string]*request
	// wanted is the number of requests that were made for pods without a launch.
	wanted int64
}

// launch is one machine, or one that may still come. Its Machine has its name, so there is one at a time.
type launch struct {
	// charges are the most that an attempt would take, or what the Machine takes.
	charges Amounts
	// exists: its Machine was observed.
	exists bool
	// tried is when the last attempt began.
	tried time.Time
	// until is when the requests of a launch that was given up have had their effect; zero if it wasn't given up.
	until time.Time
	// leavesVacancy: its charges stay when its Machine goes. vacant: they do now.
	leavesVacancy, vacant bool
}

// NewHolder returns a Holder that may begin at a time: now for the first process that ever holds a lease, else InFlight
// after the process was elected. By then it has to have observed all Machines that exist, and the lease, both as the
// API server has them and not a cache.
func NewHolder(from time.Time) *Holder {
	return &Holder{
		from: from, allowed: Amounts{}, upTo: Amounts{}, launches: map[string]*launch{}, spent: Amounts{}, vacant: Amounts{},
		requests: map[string]*request{},
	}
}

// Begin sets when it may begin, as NewHolder does.
func (h *Holder) Begin(from time.Time) { h.from = from }

// Adopt takes over the lease as the API server has it, and not a cache: when the process begins, and whenever Observe
// reports another object. Without a lease, it needn't be called.
func (h *Holder) Adopt(lease Lease) {
	h.lease = lease.ID
	h.Observe(lease)
}

// Observe takes over what a cache has of the lease, and reports whether it is the object that was adopted. It ignores
// any other: one that was deleted may have granted what was returned since, and a new one has no sequence yet by which
// that could be told. It also ignores what is older than what it has observed.
func (h *Holder) Observe(lease Lease) bool {
	if lease.ID != h.lease {
		return false
	}
	if lease.Sequence >= h.sequence {
		h.sequence, h.allowed, h.upTo, h.reclaims = lease.Sequence, lease.Limit.clone(), lease.Available.clone(), lease.Reclaims
	}
	return true
}

// Exists records a Machine of a launch, with what it takes. While another attempt of it may still have its effect, the charges
// have to cover that too.
func (h *Holder) Exists(name string, charges Amounts) {
	delete(h.requests, name)
	l := h.launch(name)
	h.setVacant(l, false)
	h.charge(l, charges)
	l.exists, l.until = true, time.Time{}
}

// Keep keeps what a launch takes once its Machine has gone: it counts as spent until another launch takes it over, by SpendVacancy,
// or Release. Call it while the Machine exists.
func (h *Holder) Keep(name string) {
	if l, ok := h.launches[name]; ok {
		l.leavesVacancy = true
	}
}

// Release keeps nothing of a launch any more.
func (h *Holder) Release(name string) {
	l, ok := h.launches[name]
	if !ok {
		return
	}
	l.leavesVacancy = false
	if l.vacant {
		h.discard(name)
	}
}

// IsVacant reports whether the Machine of a launch has gone, and what it took is kept.
func (h *Holder) IsVacant(name string) bool {
	l, ok := h.launches[name]
	return ok && l.vacant
}

// SpendVacancy is Spend for a launch that takes over what is kept of another one whose Machine has gone. That stays kept for this launch.
// It needs nothing of the lease but what it takes beyond: the rest was never returned, whatever the lease allows now.
func (h *Holder) SpendVacancy(name, vacancy string, charges Amounts, now time.Time) bool {
	if !h.FitsVacancy(name, vacancy, charges, now) {
		return false
	}
	h.discard(vacancy)
	delete(h.requests, name)
	l := h.launch(name)
	merged := charges.clone()
	merged.Raise(l.charges)
	h.charge(l, merged)
	l.tried, l.until, l.leavesVacancy = now, time.Time{}, true
	return true
}

// FitsVacancy reports whether SpendVacancy would succeed, and records nothing.
func (h *Holder) FitsVacancy(name, vacancy string, charges Amounts, now time.Time) bool {
	v, ok := h.launches[vacancy]
	if !ok || !v.vacant || name == vacancy || !h.Ready(now) {
		return false
	}
	before := v.charges.clone()
	if l, ok := h.launches[name]; ok {
		for pool, amount := range l.charges {
			before.add(pool, amount)
		}
	}
	for pool, amount := range charges {
		if more := amount - before[pool]; more > 0 && h.spent[pool]+more > h.limit(pool, h.allowed) {
			return false
		}
	}
	return true
}

// Gone records that a launch's Machine is gone: it was observed, and isn't any more. An attempt to create it that was
// made a short time ago may still create it again; then see Unclear.
func (h *Holder) Gone(name string, now time.Time) {
	l, ok := h.launches[name]
	if !ok || !l.exists {
		return
	}
	l.exists, l.until = false, l.tried.Add(2*InFlight)
	if !now.Before(l.until) {
		h.drop(name)
	}
}

// Tried records that an attempt to launch ends now, or that one was made while there was no lease. It requests nothing.
func (h *Holder) Tried(name string, charges Amounts, now time.Time) {
	l := h.launch(name)
	h.setVacant(l, false)
	merged := charges.clone()
	merged.Raise(l.charges)
	h.charge(l, merged)
	l.tried, l.until = now, time.Time{}
}

// Recharge changes what a launch takes: the rules have changed. One that is vacant takes no more than before of any pool: nothing else was
// kept for it.
func (h *Holder) Recharge(name string, charges Amounts) {
	l, ok := h.launches[name]
	if !ok {
		return
	}
	if l.vacant {
		least := Amounts{}
		for pool, amount := range charges {
			least.set(pool, min(amount, l.charges[pool]))
		}
		charges = least
	}
	h.charge(l, charges)
}

// Charges returns what a launch takes; don't modify it.
func (h *Holder) Charges(name string) Amounts {
	if l, ok := h.launches[name]; ok {
		return l.charges
	}
	return nil
}

// Tracks reports whether a launch counts.
func (h *Holder) Tracks(name string) bool {
	_, ok := h.launches[name]
	return ok
}

// Idle returns the launches without a Machine of which the last attempt ended before a time, and which weren't given up.
func (h *Holder) Idle(before time.Time) []string {
	var names []string
	for name, l := range h.launches {
		if !l.exists && !l.vacant && l.until.IsZero() && l.tried.Before(before) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Abandon records that a launch has failed for good. Its request may still have its effect; see Unclear.
func (h *Holder) Abandon(name string, now time.Time) {
	delete(h.requests, name)
	if l, ok := h.launches[name]; ok && !l.exists && !l.vacant && l.until.IsZero() {
		l.until = now.Add(InFlight)
	}
}

// Unclear returns the launches that were given up so long ago that their requests have had their effect or never will.
// They count until the API server, and not a cache, reports whether their Machine exists: by Exists or Absent.
func (h *Holder) Unclear(now time.Time) []string {
	var names []string
	for name, l := range h.launches {
		if l.unclear(now) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Absent records that the API server has no Machine of a launch that was Unclear when it was asked.
func (h *Holder) Absent(name string, asked time.Time) {
	if l, ok := h.launches[name]; ok && l.unclear(asked) {
		h.drop(name)
	}
}

func (l *launch) unclear(now time.Time) bool {
	return !l.exists && !l.until.IsZero() && !now.Before(l.until)
}

// Spend takes what a launch needs from the lease, and reports whether there is enough; only then may the Machine be
// created, at once. A launch that has spent the same before spends nothing more, and one that needs something else now
// has spent the most of both. Without enough, it becomes a request.
func (h *Holder) Spend(name string, charges Amounts, now time.Time) bool {
	h.expire(now)
	merged := charges.clone()
	if l, ok := h.launches[name]; ok {
		merged.Raise(l.charges)
	}
	if !h.Ready(now) || !h.fits(name, merged, h.allowed) {
		h.want(name, charges, now)
		return false
	}
	if _, waited := h.requests[name]; !waited {
		h.takeOver(charges)
	}
	delete(h.requests, name)
	l := h.launch(name)
	h.setVacant(l, false)
	h.charge(l, merged)
	l.tried, l.until = now, time.Time{}
	return true
}

// Fits reports whether Spend would succeed, and records nothing.
func (h *Holder) Fits(name string, charges Amounts, now time.Time) bool {
	merged := charges.clone()
	if l, ok := h.launches[name]; ok {
		merged.Raise(l.charges)
	}
	return h.Ready(now) && h.fits(name, merged, h.allowed)
}

// Left is what the lease leaves of a pool, with what is vacant, and with what it might be granted if more was requested. It isn't negative.
func (h *Holder) Left(pool string) int64 {
	return max(0, max(h.limit(pool, h.allowed), h.limit(pool, h.upTo))-h.spent[pool]) + h.vacant[pool]
}

// Free is what the lease leaves of a pool without any further grant, with what is vacant. It isn't negative.
func (h *Holder) Free(pool string) int64 {
	return max(0, h.limit(pool, h.allowed)-h.spent[pool]) + h.vacant[pool]
}

// Used is what launches take of a pool.
func (h *Holder) Used(pool string) int64 { return h.spent[pool] }

// MaySpend reports whether Spend would succeed for any launch with these charges, now or after more was requested.
func (h *Holder) MaySpend(charges Amounts, now time.Time) bool {
	h.expire(now)
	return h.Ready(now) && (h.fits("", charges, h.allowed) || h.fits("", charges, h.upTo))
}

// Report is what to write into the lease's status; false before the holder may begin, or has a lease.
func (h *Holder) Report(now time.Time) (Report, bool) {
	h.expire(now)
	if !h.Ready(now) {
		return Report{}, false
	}
	reserved := h.allowed.clone()
	reserved.Raise(h.spent)
	return Report{Sequence: h.sequence, Reserved: reserved, Used: h.spent.clone(), Requests: h.aggregate()}, true
}

// Ready reports whether the process may begin. A lease that has no sequence yet reports nothing about what takes from what.
func (h *Holder) Ready(now time.Time) bool { return !now.Before(h.from) && h.sequence > 0 }

// limit is the most that launches may take of a pool.
func (h *Holder) limit(pool string, allowed Amounts) int64 {
	if amount, reclaimed := h.reclaims.Limit(pool); reclaimed {
		return min(amount, allowed[pool])
	}
	return allowed[pool]
}

// fits reports whether a launch with these charges is within the allowed amounts. A launch whose charges don't grow is.
func (h *Holder) fits(name string, charges, allowed Amounts) bool {
	var before Amounts
	if l, ok := h.launches[name]; ok {
		before = l.charges
	}
	for pool, amount := range charges {
		if more := amount - before[pool]; more > 0 && h.spent[pool]+more > h.limit(pool, allowed) {
			return false
		}
	}
	return true
}

func (h *Holder) launch(name string) *launch {
	l, ok := h.launches[name]
	if !ok {
		l = &launch{charges: Amounts{}}
		h.launches[name] = l
	}
	return l
}

// charge changes what a launch takes.
func (h *Holder) charge(l *launch, charges Amounts) {
	h.count(l, -1)
	l.charges = charges.clone()
	h.count(l, 1)
}

// count adds what a launch takes to the sums, or subtracts it.
func (h *Holder) count(l *launch, sign int64) {
	for pool, amount := range l.charges {
		h.spent.add(pool, sign*amount)
		if l.vacant {
			h.vacant.add(pool, sign*amount)
		}
	}
}

// setVacant changes whether other launches may take over what a launch takes.
func (h *Holder) setVacant(l *launch, vacant bool) {
	h.count(l, -1)
	l.vacant = vacant
	h.count(l, 1)
}

// drop records that a launch has no Machine, and never will: it takes nothing any more, or is vacant.
func (h *Holder) drop(name string) {
	l, ok := h.launches[name]
	switch {
	case !ok:
	case l.leavesVacancy:
		l.exists, l.until = false, time.Time{}
		h.setVacant(l, true)
	default:
		h.discard(name)
	}
}

// discard forgets a launch.
func (h *Holder) discard(name string) {
	if l, ok := h.launches[name]; ok {
		h.count(l, -1)
		delete(h.launches, name)
	}
}
