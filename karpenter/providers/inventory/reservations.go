// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/autonode-io/autonode/karpenter/providers/change"
)

// PromiseTTL is how long a place is kept for a launch whose Machine never shows. It is longer than Karpenter keeps a NodeClaim
// that doesn't launch, so that a promise never lapses while its launch is still being tried.
const PromiseTTL = 10 * time.Minute

var (
	// ErrFull says that a source has as many machines as it may.
	ErrFull = errors.New("as many machines as it may have")
	// ErrNotCounted says that the Machines there are haven't been counted yet.
	ErrNotCounted = errors.New("the Machines haven't been counted yet")
)

// reservations keep the number of machines of a template within its maximum, however many are launched at once. They count the Machines
// that the cache shows, and those that were promised to a launch and haven't been seen yet. Machines are counted by source, which is named as v1alpha1.ShapeSourceAnnotation names it. NodeClaims are named by
// their UIDs. It is safe for concurrent use.
type reservations struct {
	clock clock.PassiveClock
	// counted says whether every Machine that there was at the start has been told to Observe.
	counted func() bool

	mu sync.Mutex
	// machines are the sources of the Machines that the cache shows, by NodeClaim.
	machines map[types.UID]string
	// promises are the places that launches have, by NodeClaim and source. A launch that is tried again may choose another
	// source, and it isn't known then whether the first attempt's Machine exists: both places are kept until it shows.
	promises map[types.UID]map[string]time.Time
	sources  map[string]*source
	// observers are told when a source becomes full or has a place again.
	observers change.Notifier

	sequence   *atomic.Uint64
	nextExpiry atomic.Int64 // of the promises, in nanoseconds since the epoch
}

// source is what is known of one shape source.
type source struct {
	machines, promises int
	// limit is what Full was asked about last; it is negative while it was never asked.
	limit int
	full  bool
}

// newReservations returns none, whose promises end by clk. Nothing is promised before counted returns true. The sequence changes when an
// answer of Full does.
func newReservations(clk clock.PassiveClock, counted func() bool, sequence *atomic.Uint64) *reservations {
	l := &reservations{
		clock:    clk,
		counted:  counted,
		machines: map[types.UID]string{},
		promises: map[types.UID]map[string]time.Time{},
		sources:  map[string]*source{},
		sequence: sequence,
	}
	l.nextExpiry.Store(math.MaxInt64)
	return l
}

// Reserve promises a NodeClaim a place among a source's machines, of which there may be limit. Asked again for the same
// NodeClaim and source, it needs no second place. The error is ErrFull or ErrNotCounted, wrapped.
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
		l.nextExpiry.Store(min(l.nextExpiry.Load(), now.Add(PromiseTTL).UnixNano()))
	}
	l.settle(name)
	return nil
}

// Observe says that a NodeClaim has a Machine, and from which source. Whatever places were kept for it are settled by that.
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

// Forget says that a NodeClaim has no Machine any more, or will never have one.
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

// Promised tells whether a place is kept for a NodeClaim whose Machine hasn't shown.
func (l *reservations) Promised(nodeClaim types.UID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.promises[nodeClaim]) > 0
}

// Withdraw takes back every place that is kept for a NodeClaim whose Machine hasn't shown.
func (l *reservations) Withdraw(nodeClaim types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.withdraw(nodeClaim)
}

// Count is the number of a source's machines, promised ones included.
func (l *reservations) Count(name string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire(l.clock.Now())
	if s, ok := l.sources[name]; ok {
		return s.machines + s.promises
	}
	return 0
}

// Full tells whether a source has as many machines as it may. From then on, Sequence changes when the answer does.
func (l *reservations) Full(name string, limit int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire(l.clock.Now())
	s := l.source(name)
	s.limit = limit
	s.full = s.machines+s.promises >= limit
	return s.full
}

// OnChange calls f, which must neither block nor ask the ledger anything, whenever an answer of Full has changed.
func (l *reservations) OnChange(f func()) { l.observers.Add(f) }

// Sequence changes whenever an answer of Full has. It neither locks nor allocates while nothing changes.
func (l *reservations) Sequence() uint64 {
	if now := l.clock.Now(); now.UnixNano() >= l.nextExpiry.Load() {
		l.mu.Lock()
		l.expire(now)
		l.mu.Unlock()
	}
	return l.sequence.Load()
}

func (l *reservations) source(name string) *source {
	s, ok := l.sources[name]
	if !ok {
		s = &source{limit: -1}
		l.sources[name] = s
	}
	return s
}

// settle notes whether a source has become full, or has a place again.
func (l *reservations) settle(name string) {
	s := l.source(name)
	if s.limit < 0 {
		if s.machines+s.promises == 0 {
			// Nobody has asked about it, and there is nothing to know.
			delete(l.sources, name)
		}
		return
	}
	if full := s.machines+s.promises >= s.limit; full != s.full {
		s.full = full
		l.sequence.Add(1)
		l.observers.Notify()
	}
}

// withdraw takes back every place that was kept for a NodeClaim.
func (l *reservations) withdraw(nodeClaim types.UID) {
	for name := range l.promises[nodeClaim] {
		l.source(name).promises--
		l.settle(name)
	}
	delete(l.promises, nodeClaim)
}

// expire takes back the places whose time is over.
func (l *reservations) expire(now time.Time) {
	if now.UnixNano() < l.nextExpiry.Load() {
		return
	}
	next := int64(math.MaxInt64)
	for nodeClaim, places := range l.promises {
		for name, until := range places {
			if now.Before(until) {
				next = min(next, until.UnixNano())
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
	l.nextExpiry.Store(next)
}
