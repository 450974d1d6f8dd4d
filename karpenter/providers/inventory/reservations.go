// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/autonode-io/autonode/karpenter/providers/change"
)

// PromiseTTL is how long a reservation is kept for a launch whose Machine is never observed. It is longer than
// Karpenter's launch timeout, so that a reservation never expires while its launch is being retried.
const PromiseTTL = 10 * time.Minute

var (
	// ErrFull is returned when a source has reached its maximum size.
	ErrFull = errors.New("as many machines as it may have")
	// ErrNotCounted is returned while the existing Machines haven't been counted yet.
	ErrNotCounted = errors.New("the Machines haven't been counted yet")
)

// reservations keep the number of a template's machines within its maximum under concurrent launches. They count the
// Machines in the cache, and those reserved for a launch and not yet observed. Machines are counted by source, as
// named by v1alpha1.TemplateSourceAnnotation, and NodeClaims are identified by UID. It is safe for concurrent use.
type reservations struct {
	clock clock.PassiveClock
	// counted reports whether every Machine that existed at startup has been observed.
	counted func() bool

	mu sync.Mutex
	// machines holds the source of each observed Machine, by NodeClaim.
	machines map[types.UID]string
	// promises holds when each reservation was made, by NodeClaim and source. A retried launch may choose another
	// source, while the first attempt's Machine may exist: both reservations stay until it is observed.
	promises map[types.UID]map[string]time.Time
	sources  map[string]*source
	// every: the names are those of the infrastructure's reservations, and each change of their number counts.
	every bool
	// observers are notified when a source reaches its maximum or falls below it.
	observers change.Notifier

	changes    *change.Log[Change]
	nextExpiry change.Expiry // of the promises
}

// source is the state of one template source.
type source struct {
	machines, promises int
	// limit is the last maximum passed to Full; negative before the first call.
	limit int
	full  bool
}

// newReservations returns an empty set whose reservations expire by clk. It reserves nothing before counted returns
// true. The sequence changes with the results of Full.
func newReservations(clk clock.PassiveClock, counted func() bool, changes *change.Log[Change]) *reservations {
	return &reservations{
		clock:    clk,
		counted:  counted,
		machines: map[types.UID]string{},
		promises: map[types.UID]map[string]time.Time{},
		sources:  map[string]*source{},
		changes:  changes,
	}
}

// Reserve reserves one of a source's machines, of which there may be limit, for a NodeClaim. A second call for the
// same NodeClaim and source reserves nothing more. The error wraps ErrFull or ErrNotCounted.
func (r *reservations) Reserve(nodeClaim types.UID, name string, limit int) error {
	if !r.counted() {
		return fmt.Errorf("launching from %s: %w", name, ErrNotCounted)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	r.expire(now)
	_, promised := r.promises[nodeClaim][name]
	s := r.source(name)
	if !promised && r.machines[nodeClaim] != name {
		if s.machines+s.promises >= limit {
			return fmt.Errorf("%s has %d of at most %d machines: %w", name, s.machines+s.promises, limit, ErrFull)
		}
		s.promises++
	}
	if r.machines[nodeClaim] != name {
		if r.promises[nodeClaim] == nil {
			r.promises[nodeClaim] = map[string]time.Time{}
		}
		r.promises[nodeClaim][name] = now.Add(PromiseTTL)
		r.nextExpiry.Advance(now.Add(PromiseTTL))
	}
	r.recomputeFull(name)
	return nil
}

// Observe records a NodeClaim's Machine and its source, and releases the NodeClaim's reservations.
func (r *reservations) Observe(nodeClaim types.UID, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if before, ok := r.machines[nodeClaim]; ok && before != name {
		r.source(before).machines--
		r.recomputeFull(before)
	} else if ok {
		return
	}
	r.machines[nodeClaim] = name
	r.source(name).machines++
	r.withdraw(nodeClaim)
	r.recomputeFull(name)
}

// Forget records that a NodeClaim has no Machine any more, or never will.
func (r *reservations) Forget(nodeClaim types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if name, ok := r.machines[nodeClaim]; ok {
		delete(r.machines, nodeClaim)
		r.source(name).machines--
		r.recomputeFull(name)
	}
	r.withdraw(nodeClaim)
}

// Promised reports whether a NodeClaim has a reservation and no observed Machine.
func (r *reservations) Promised(nodeClaim types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.promises[nodeClaim]) > 0
}

// Withdraw releases all reservations of a NodeClaim without an observed Machine.
func (r *reservations) Withdraw(nodeClaim types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.withdraw(nodeClaim)
}

// Count is the number of a source's machines, including reservations.
func (r *reservations) Count(name string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expire(r.clock.Now())
	if s, ok := r.sources[name]; ok {
		return s.machines + s.promises
	}
	return 0
}

// Full reports whether a source has reached its maximum size. From then on, Sequence changes with the result.
func (r *reservations) Full(name string, limit int) bool { return r.Remaining(name, limit) == 0 }

// Remaining is how many more machines a source may have. From then on, Sequence changes with the result of Full, or if every is set with
// this one.
func (r *reservations) Remaining(name string, limit int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expire(r.clock.Now())
	s := r.source(name)
	s.limit = limit
	s.full = s.machines+s.promises >= limit
	return max(limit-s.machines-s.promises, 0)
}

// OnChange calls f whenever a result of Full changes. f must neither block nor call the reservations.
func (r *reservations) OnChange(f func()) { r.observers.Add(f) }

// Sequence changes whenever a result of Full changes. It neither locks nor allocates while nothing changes.
func (r *reservations) Sequence() uint64 {
	if r.nextExpiry.Passed(r.clock) {
		r.mu.Lock()
		r.expire(r.clock.Now())
		r.mu.Unlock()
	}
	return r.changes.Sequence()
}

func (r *reservations) source(name string) *source {
	s, ok := r.sources[name]
	if !ok {
		s = &source{limit: -1}
		r.sources[name] = s
	}
	return s
}

// recomputeFull updates whether a source has reached its maximum.
func (r *reservations) recomputeFull(name string) {
	s := r.source(name)
	if s.limit < 0 {
		if s.machines+s.promises == 0 {
			// Full was never called for it, so there is nothing to track.
			delete(r.sources, name)
		}
		return
	}
	full := s.machines+s.promises >= s.limit
	switch {
	case r.every:
		r.changes.Add(Change{Reservation: name})
	case full != s.full:
		r.changes.Add(Change{Source: name})
	}
	if full != s.full {
		s.full = full
		r.observers.Notify()
	}
}

// withdraw releases a NodeClaim's reservations.
func (r *reservations) withdraw(nodeClaim types.UID) {
	for name := range r.promises[nodeClaim] {
		r.source(name).promises--
		r.recomputeFull(name)
	}
	delete(r.promises, nodeClaim)
}

// expire releases expired reservations.
func (r *reservations) expire(now time.Time) {
	if !r.nextExpiry.PassedAt(now) {
		return
	}
	var next time.Time
	for nodeClaim, places := range r.promises {
		for name, until := range places {
			if now.Before(until) {
				next = change.Earlier(next, until)
				continue
			}
			delete(places, name)
			r.source(name).promises--
			r.recomputeFull(name)
		}
		if len(places) == 0 {
			delete(r.promises, nodeClaim)
		}
	}
	r.nextExpiry.Set(next)
}
