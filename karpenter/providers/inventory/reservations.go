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
func (l *reservations) Reserve(nodeClaim types.UID, name string, limit int) error {
	if !l.counted() {
		return fmt.Errorf("launching from %s: %w", name, ErrNotCounted)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	l.expire(now)
	_, promised := l.promises[nodeClaim][name]
	s := l.source(name)
	if !promised && l.machines[nodeClaim] != name {
		if s.machines+s.promises >= limit {
			return fmt.Errorf("%s has %d of at most %d machines: %w", name, s.machines+s.promises, limit, ErrFull)
		}
		s.promises++
	}
	if l.machines[nodeClaim] != name {
		if l.promises[nodeClaim] == nil {
			l.promises[nodeClaim] = map[string]time.Time{}
		}
		l.promises[nodeClaim][name] = now.Add(PromiseTTL)
		l.nextExpiry.Advance(now.Add(PromiseTTL))
	}
	l.settle(name)
	return nil
}

// Observe records a NodeClaim's Machine and its source, and releases the NodeClaim's reservations.
func (l *reservations) Observe(nodeClaim types.UID, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if before, ok := l.machines[nodeClaim]; ok && before != name {
		l.source(before).machines--
		l.settle(before)
	} else if ok {
		return
	}
	l.machines[nodeClaim] = name
	l.source(name).machines++
	l.withdraw(nodeClaim)
	l.settle(name)
}

// Forget records that a NodeClaim has no Machine any more, or never will.
func (l *reservations) Forget(nodeClaim types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if name, ok := l.machines[nodeClaim]; ok {
		delete(l.machines, nodeClaim)
		l.source(name).machines--
		l.settle(name)
	}
	l.withdraw(nodeClaim)
}

// Promised reports whether a NodeClaim has a reservation and no observed Machine.
func (l *reservations) Promised(nodeClaim types.UID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.promises[nodeClaim]) > 0
}

// Acquire is Reserve that reports false if the maximum is reached.
func (l *reservations) Acquire(nodeClaim types.UID, name string, limit int) (bool, error) {
	err := l.Reserve(nodeClaim, name, limit)
	if errors.Is(err, ErrFull) {
		return false, nil
	}
	return err == nil, err
}

// Withdraw releases all reservations of a NodeClaim without an observed Machine.
func (l *reservations) Withdraw(nodeClaim types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.withdraw(nodeClaim)
}

// Count is the number of a source's machines, including reservations.
func (l *reservations) Count(name string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire(l.clock.Now())
	if s, ok := l.sources[name]; ok {
		return s.machines + s.promises
	}
	return 0
}

// Full reports whether a source has reached its maximum size. From then on, Sequence changes with the result.
func (l *reservations) Full(name string, limit int) bool { return l.Left(name, limit) == 0 }

// Left is how many more machines a source may have. From then on, Sequence changes with the result of Full, or if every is set with
// this one.
func (l *reservations) Left(name string, limit int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire(l.clock.Now())
	s := l.source(name)
	s.limit = limit
	s.full = s.machines+s.promises >= limit
	return max(limit-s.machines-s.promises, 0)
}

// OnChange calls f whenever a result of Full changes. f must neither block nor call the reservations.
func (l *reservations) OnChange(f func()) { l.observers.Add(f) }

// Sequence changes whenever a result of Full changes. It neither locks nor allocates while nothing changes.
func (l *reservations) Sequence() uint64 {
	if l.nextExpiry.Passed(l.clock) {
		l.mu.Lock()
		l.expire(l.clock.Now())
		l.mu.Unlock()
	}
	return l.changes.Sequence()
}

func (l *reservations) source(name string) *source {
	s, ok := l.sources[name]
	if !ok {
		s = &source{limit: -1}
		l.sources[name] = s
	}
	return s
}

// settle updates whether a source has reached its maximum.
func (l *reservations) settle(name string) {
	s := l.source(name)
	if s.limit < 0 {
		if s.machines+s.promises == 0 {
			// Full was never called for it, so there is nothing to track.
			delete(l.sources, name)
		}
		return
	}
	full := s.machines+s.promises >= s.limit
	switch {
	case l.every:
		l.changes.Add(Change{Reservation: name})
	case full != s.full:
		l.changes.Add(Change{Source: name})
	}
	if full != s.full {
		s.full = full
		l.observers.Notify()
	}
}

// withdraw releases a NodeClaim's reservations.
func (l *reservations) withdraw(nodeClaim types.UID) {
	for name := range l.promises[nodeClaim] {
		l.source(name).promises--
		l.settle(name)
	}
	delete(l.promises, nodeClaim)
}

// expire releases expired reservations.
func (l *reservations) expire(now time.Time) {
	if !l.nextExpiry.PassedAt(now) {
		return
	}
	var next time.Time
	for nodeClaim, places := range l.promises {
		for name, until := range places {
			if now.Before(until) {
				next = change.Earlier(next, until)
				continue
			}
			delete(places, name)
			l.source(name).promises--
			l.settle(name)
		}
		if len(places) == 0 {
			delete(l.promises, nodeClaim)
		}
	}
	l.nextExpiry.Set(next)
}
