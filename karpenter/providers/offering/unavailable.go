// SPDX-License-Identifier: Apache-2.0

// Package offering knows which offerings failed lately, and chooses among the others.
package offering

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/autonode-io/autonode/karpenter/providers/change"
)

// How long an offering that failed stays unavailable: the first failure costs BaseTTL, and every further one within
// MaxTTL of the last one's end doubles it, up to MaxTTL.
const (
	BaseTTL = 3 * time.Minute
	MaxTTL  = time.Hour
)

// Strikes is how many machines of an offering have to fail in a row, for reasons that aren't the offering's own, before it is
// unavailable all the same: what always fails would otherwise be tried for ever. StrikeMemory is how long after the last one they
// are forgotten.
const (
	Strikes      = 3
	StrikeMemory = 24 * time.Hour
)

// Key identifies an offering among those of all node classes.
type Key struct {
	InstanceType, Zone, CapacityType string
}

// Entry is one unavailable offering.
type Entry struct {
	Key
	// Reason is why, as the event on the NodeClaim has it: one of a few words.
	Reason string
	Until  time.Time
	// Failures in a row.
	Failures int
}

// Unavailable remembers the offerings that failed lately. It is safe for concurrent use.
type Unavailable struct {
	clock clock.PassiveClock

	mu      sync.Mutex
	entries map[Key]Entry
	// past are entries whose time is over, kept as long as a further failure counts as one in a row.
	past map[Key]Entry
	// strikes are failures that weren't the offering's own.
	strikes map[Key]strikes
	// observers are told of each change.
	observers change.Notifier

	sequence atomic.Uint64
	// nextExpiry is in nanoseconds since the epoch, so that Sequence takes no lock while nothing changes.
	nextExpiry atomic.Int64
}

type strikes struct {
	count int
	last  time.Time
}

// NewUnavailable returns an empty set whose entries end by clk.
func NewUnavailable(clk clock.PassiveClock) *Unavailable {
	u := &Unavailable{clock: clk, entries: map[Key]Entry{}, past: map[Key]Entry{}, strikes: map[Key]strikes{}}
	u.nextExpiry.Store(math.MaxInt64)
	return u
}

// Mark makes an offering unavailable for a while, and returns until when. A failure reported again while the offering is
// unavailable anyway changes nothing: several machines that were asked for at once fail together.
func (u *Unavailable) Mark(key Key, reason string) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mark(key, reason)
}

// Strike counts a failure that isn't the offering's own: its machine came, and was no use. From the third in a row on it makes
// the offering unavailable as Mark does, and returns until when; the zero time before that.
func (u *Unavailable) Strike(key Key, reason string) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := u.clock.Now()
	for other, s := range u.strikes {
		if now.Sub(s.last) > StrikeMemory {
			delete(u.strikes, other)
		}
	}
	s := strikes{count: u.strikes[key].count + 1, last: now}
	u.strikes[key] = s
	if s.count < Strikes {
		return time.Time{}
	}
	return u.mark(key, reason)
}

// Works says that a machine of an offering, asked for at some time, has become a node. What failed before it was asked for doesn't
// count any more.
func (u *Unavailable) Works(key Key, asked time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if s, ok := u.strikes[key]; ok && s.last.Before(asked) {
		delete(u.strikes, key)
	}
	if last, ok := u.past[key]; ok && last.Until.Before(asked) {
		delete(u.past, key)
	}
}

func (u *Unavailable) mark(key Key, reason string) time.Time {
	now := u.clock.Now()
	u.expire(now)
	if entry, ok := u.entries[key]; ok {
		return entry.Until
	}
	failures := 1
	if last, ok := u.past[key]; ok {
		failures += last.Failures
		delete(u.past, key)
	}
	ttl := MaxTTL
	if shift := failures - 1; shift < 16 {
		ttl = min(BaseTTL<<shift, MaxTTL)
	}
	entry := Entry{Key: key, Reason: reason, Until: now.Add(ttl), Failures: failures}
	u.entries[key] = entry
	u.changed()
	return entry.Until
}

// Has tells whether an offering is unavailable now.
func (u *Unavailable) Has(key Key) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	entry, ok := u.entries[key]
	return ok && u.clock.Now().Before(entry.Until)
}

// Entries returns what is unavailable now, ordered by key.
func (u *Unavailable) Entries() []Entry {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.expire(u.clock.Now())
	entries := make([]Entry, 0, len(u.entries))
	for _, entry := range u.entries {
		entries = append(entries, entry)
	}
	slices.SortFunc(entries, func(a, b Entry) int { return a.Key.Compare(b.Key) })
	return entries
}

// OnChange calls f, which must neither block nor ask the set anything, whenever an offering has become unavailable, or it was noticed
// that the time of one is over.
func (u *Unavailable) OnChange(f func()) { u.observers.Add(f) }

// Next is when the time of an offering is over that is unavailable now; false if none is.
func (u *Unavailable) Next() (time.Time, bool) {
	next := u.nextExpiry.Load()
	return time.Unix(0, next), next != math.MaxInt64
}

// Sequence changes whenever the answer of Has may have changed for some offering. It neither locks nor allocates while
// nothing changes.
func (u *Unavailable) Sequence() uint64 {
	if now := u.clock.Now(); now.UnixNano() >= u.nextExpiry.Load() {
		u.mu.Lock()
		u.expire(now)
		u.mu.Unlock()
	}
	return u.sequence.Load()
}

// Compare orders keys by instance type, zone and capacity type.
func (k Key) Compare(other Key) int {
	return cmp.Or(
		cmp.Compare(k.InstanceType, other.InstanceType),
		cmp.Compare(k.Zone, other.Zone),
		cmp.Compare(k.CapacityType, other.CapacityType),
	)
}

// expire moves entries whose time is over to the past, and forgets the past that no longer counts.
func (u *Unavailable) expire(now time.Time) {
	for key, entry := range u.past {
		if now.Sub(entry.Until) > MaxTTL {
			delete(u.past, key)
		}
	}
	expired := false
	for key, entry := range u.entries {
		if !now.Before(entry.Until) {
			delete(u.entries, key)
			if now.Sub(entry.Until) <= MaxTTL {
				u.past[key] = entry
			}
			expired = true
		}
	}
	if expired {
		u.changed()
	}
}

func (u *Unavailable) changed() {
	next := int64(math.MaxInt64)
	for _, entry := range u.entries {
		next = min(next, entry.Until.UnixNano())
	}
	u.nextExpiry.Store(next)
	u.sequence.Add(1)
	u.observers.Notify()
}
