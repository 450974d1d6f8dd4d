// SPDX-License-Identifier: Apache-2.0

// Package offering tracks unavailable offerings, and chooses the cheapest of the others.
package offering

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/change"
)

// How long a failed offering stays unavailable: BaseTTL after the first failure. Each further failure within MaxTTL
// of the previous one's expiry doubles it, up to MaxTTL.
const (
	BaseTTL = 3 * time.Minute
	MaxTTL  = time.Hour
)

// FailureThreshold is how many machines in a row have to fail for reasons other than capacity before their offering
// is unavailable. Without it, an offering that always fails would be retried forever. FailureMemory is how long a
// failure counts.
const (
	FailureThreshold = 3
	FailureMemory    = 24 * time.Hour
)

// StreakThreshold is how many offerings have to fail, without a machine of another one in between, for Streak. It is one more than close
// a zone together, so that one exhausted zone is no streak.
const StreakThreshold = 5

// MisconfiguredReason of an Entry: the infrastructure rejects what the template asks for, and would again.
const MisconfiguredReason = "Misconfigured"

// Key identifies an offering among those of all node classes.
type Key struct {
	InstanceType, Zone, CapacityType string
	// Reservation is that of a reserved offering; empty for any other.
	Reservation string
}

// KeyOf returns the key of an instance type's offering.
func KeyOf(instanceType string, o *karpcloudprovider.Offering) Key {
	return Key{InstanceType: instanceType, Zone: o.Zone(), CapacityType: o.CapacityType(), Reservation: ReservationOf(o)}
}

// ReservationOf returns the reservation of a reserved offering; empty for any other. The offering's own method answers for every offering.
func ReservationOf(o *karpcloudprovider.Offering) string {
	if requirement, ok := o.Requirements[karpcloudprovider.ReservationIDLabel]; ok && requirement.Operator() == corev1.NodeSelectorOpIn {
		return requirement.Any()
	}
	return ""
}

// Lack is what the infrastructure has no more of for an offering; empty if the failure reports nothing about it.
type Lack string

// What the infrastructure may lack, as reports call it.
const (
	// LackOfCapacity of the offering's zone.
	LackOfCapacity Lack = "Capacity"
	// LackOfQuota of the account, which counts many offerings together.
	LackOfQuota Lack = "Quota"
)

// Entry is one unavailable offering.
type Entry struct {
	Key
	// Lacks is what the offering failed for the lack of.
	Lacks Lack
	// Reason is the reason of the event on the NodeClaim. It has few values.
	Reason string
	// At is when the failure was reported; zero if there was none, as for Hold.
	At    time.Time
	Until time.Time
	// Failures in a row.
	Failures int
	// Quota that it failed for the lack of, and the smallest amount of it that is too much; empty for none.
	Quota Quota
	// Words of the infrastructure on the last failure; empty if there are none. Explain records them.
	Words string
}

// Group is all offerings of a capacity type in a zone. It has no reserved ones: a reservation has capacity of its own.
type Group struct{ Zone, CapacityType string }

// Change is what the result of Has may have changed for: an offering, or all offerings if it has no instance type.
type Change struct {
	InstanceType string
	Group
}

// Unavailable tracks the offerings that failed recently. It is safe for concurrent use.
type Unavailable struct {
	clock clock.PassiveClock

	mu      sync.Mutex
	entries map[Key]Entry
	// groups are unavailable until a time, because of the entries.
	groups map[Group]time.Time
	// quotas are exhausted, because of the entries and of shared, which other clusters of the account report.
	quotas map[quotaKey]ClosedQuota
	shared []ClosedQuota
	// past holds expired entries, as long as a further failure counts as consecutive.
	past map[Key]Entry
	// failures counts failures for reasons other than capacity.
	failures map[Key]failureCount
	// worked is when a machine of an offering became a node last, for MaxTTL.
	worked map[Key]time.Time
	// observers are notified of each change.
	observers change.Notifier

	// changes are what the result of Has may have changed for.
	changes change.Log[Change]
	// nextExpiry is of the entries. A group ends when one of them does.
	nextExpiry change.Expiry
}

type failureCount struct {
	count int
	last  time.Time
}

// NewUnavailable returns an empty set whose entries expire by clk.
func NewUnavailable(clk clock.PassiveClock) *Unavailable {
	return &Unavailable{clock: clk, entries: map[Key]Entry{}, past: map[Key]Entry{}, failures: map[Key]failureCount{},
		worked: map[Key]time.Time{}}
}

// Now is the time by which entries expire.
func (u *Unavailable) Now() time.Time { return u.clock.Now() }

// Mark makes an offering unavailable, and returns until when. It doesn't extend an existing entry: several machines
// launched at once fail together.
func (u *Unavailable) Mark(key Key, reason string) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mark(Entry{Key: key, Reason: reason})
}

// Explain records the infrastructure's words on the last failure of an unavailable offering.
func (u *Unavailable) Explain(key Key, words string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if entry, ok := u.entries[key]; ok {
		entry.Words = words
		u.entries[key] = entry
	}
}

// Hold keeps an offering unavailable until a time at least. It counts as no failure: what comes next is judged by those before it.
func (u *Unavailable) Hold(key Key, reason string, until time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.expire(u.clock.Now())
	entry, known := u.entries[key]
	if known && !entry.Until.Before(until) {
		return
	}
	if !known {
		entry = Entry{Key: key, Failures: u.past[key].Failures}
		delete(u.past, key)
	}
	entry.Until = until
	if entry.Reason = cmp.Or(entry.Reason, reason); known {
		u.entries[key] = entry
		return // it was unavailable, and nextExpiry only makes expire look
	}
	u.entries[key] = entry
	u.changed(key)
	u.regroup()
	u.nextExpiry.Advance(until)
	u.observers.Notify()
}

// MarkExhausted is Mark for an offering that the infrastructure lacks capacity for. When enough instance types of a zone do, all of them
// are unavailable there.
func (u *Unavailable) MarkExhausted(key Key, reason string) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mark(Entry{Key: key, Reason: reason, Lacks: LackOfCapacity})
}

// CountFailure counts a failed machine of an offering that has capacity. From FailureThreshold consecutive failures
// on it makes the offering unavailable as Mark does, and returns until when. Before that it returns the zero time.
func (u *Unavailable) CountFailure(key Key, reason string) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := u.clock.Now()
	for other, s := range u.failures {
		if now.Sub(s.last) > FailureMemory {
			delete(u.failures, other)
		}
	}
	s := failureCount{count: u.failures[key].count + 1, last: now}
	u.failures[key] = s
	if s.count < FailureThreshold {
		return time.Time{}
	}
	return u.mark(Entry{Key: key, Reason: reason})
}

// Works records that a machine of an offering, launched at the given time, has become a node. Failures from before
// its launch no longer count.
func (u *Unavailable) Works(key Key, asked time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := u.clock.Now()
	maps.DeleteFunc(u.worked, func(_ Key, at time.Time) bool { return now.Sub(at) > MaxTTL })
	u.worked[key] = now
	if len(u.entries) > 0 {
		u.observers.Notify() // it ends a streak
	}
	if s, ok := u.failures[key]; ok && s.last.Before(asked) {
		delete(u.failures, key)
	}
	if last, ok := u.past[key]; ok && last.Until.Before(asked) {
		delete(u.past, key)
	}
}

// Clear makes an offering available again that lacked capacity: some has just been returned. A further failure counts as consecutive.
func (u *Unavailable) Clear(key Key) {
	u.mu.Lock()
	defer u.mu.Unlock()
	entry, ok := u.entries[key]
	if !ok || entry.Lacks != LackOfCapacity {
		return
	}
	delete(u.entries, key)
	entry.Until = u.clock.Now()
	u.past[key] = entry
	u.changed(key)
	u.regroup()
	u.observers.Notify()
}

func (u *Unavailable) mark(entry Entry) time.Time {
	now, key := u.clock.Now(), entry.Key
	u.expire(now)
	if before, ok := u.entries[key]; ok {
		if entry.Lacks == LackOfQuota || entry.Lacks == LackOfCapacity && before.Lacks == "" {
			before.Reason, before.Lacks, before.Quota = entry.Reason, entry.Lacks, entry.Quota
			u.entries[key] = before
			u.regroup()
			u.observers.Notify()
		}
		return before.Until
	}
	entry.Failures = 1
	if last, ok := u.past[key]; ok {
		delete(u.past, key)
		if now.Sub(last.Until) <= MaxTTL {
			entry.Failures += last.Failures
		}
	}
	entry.At, entry.Until = now, now.Add(ttl(entry.Failures))
	u.entries[key] = entry
	u.changed(key)
	u.regroup()
	u.nextExpiry.Advance(entry.Until)
	u.observers.Notify()
	return entry.Until
}

// ttl is how long the last of several consecutive failures counts.
func ttl(failures int) time.Duration {
	if shift := failures - 1; shift < 16 {
		return min(BaseTTL<<shift, MaxTTL)
	}
	return MaxTTL
}

func (u *Unavailable) changed(key Key) {
	u.changes.Add(Change{InstanceType: key.InstanceType, Group: Group{Zone: key.Zone, CapacityType: key.CapacityType}})
}

// regroup finds the groups and quotas that the entries make unavailable. u.mu must be held.
func (u *Unavailable) regroup() {
	groups, zones := map[Group]time.Time{}, map[Group][]time.Time{}
	for key, entry := range u.entries {
		if counts(key) && entry.Lacks == LackOfCapacity {
			zone := Group{Zone: key.Zone, CapacityType: key.CapacityType}
			zones[zone] = append(zones[zone], entry.Until)
		}
	}
	for zone, untils := range zones {
		if until, ok := capacity.ZoneUntil(zone.Zone, untils); ok {
			groups[zone] = until
		}
	}
	for group := range u.groups {
		if _, still := groups[group]; !still {
			u.changes.Add(Change{Group: group})
		}
	}
	for group := range groups {
		if _, before := u.groups[group]; !before {
			u.changes.Add(Change{Group: group})
		}
	}
	u.groups = groups
	u.regroupQuotas()
}

// Has reports whether an offering is unavailable now: itself, its zone, or by one of the quotas that count it.
func (u *Unavailable) Has(key Key, quotas ...Quota) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.entries)+len(u.quotas) == 0 {
		return false
	}
	now := u.clock.Now()
	if now.Before(u.entries[key].Until) {
		return true
	}
	if counts(key) && now.Before(u.groups[Group{Zone: key.Zone, CapacityType: key.CapacityType}]) {
		return true
	}
	_, closed := u.closedBy(key, quotas)
	return closed
}

// Streak returns those of some offerings that failed since a machine of any of them became a node last, and are still in back-off. It
// returns none if there are fewer than StreakThreshold, unless the next launch of one would fail as well. A quota makes no streak: it is
// closed.
func (u *Unavailable) Streak(keys iter.Seq[Key]) []Entry {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := u.clock.Now()
	u.expire(now)
	if len(u.entries) == 0 {
		return nil
	}
	var failed []Entry
	var worked time.Time
	for key := range keys {
		if at := u.worked[key]; at.After(worked) {
			worked = at
		}
		if entry, ok := u.entries[key]; ok && now.Before(entry.Until) {
			failed = append(failed, entry)
		}
	}
	failed = slices.DeleteFunc(failed, func(entry Entry) bool { return entry.Lacks == LackOfQuota || !entry.At.After(worked) })
	if len(failed) < StreakThreshold && !slices.ContainsFunc(failed, func(entry Entry) bool { return entry.Reason == MisconfiguredReason }) {
		return nil
	}
	return failed
}

// Entry returns the entry of an offering that is unavailable itself; false for any other.
func (u *Unavailable) Entry(key Key) (Entry, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	entry, ok := u.entries[key]
	return entry, ok && u.clock.Now().Before(entry.Until)
}

// isEmpty reports whether no failure counts any more.
func (u *Unavailable) isEmpty() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := u.clock.Now()
	u.expire(now)
	for _, entry := range u.past {
		if now.Sub(entry.Until) <= MaxTTL {
			return false
		}
	}
	return len(u.entries) == 0 && len(u.failures) == 0
}

// Entries returns the unavailable offerings, ordered by key.
func (u *Unavailable) Entries() []Entry {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.expire(u.clock.Now())
	return slices.SortedFunc(maps.Values(u.entries), func(a, b Entry) int { return a.Key.Compare(b.Key) })
}

// OnChange calls f whenever an offering becomes unavailable, or an expired entry is noticed. f must neither block nor
// call the set.
func (u *Unavailable) OnChange(f func()) { u.observers.Add(f) }

// Next returns when the next entry expires; false if there is none.
func (u *Unavailable) Next() (time.Time, bool) { return u.nextExpiry.Next() }

// Sequence changes whenever a result of Has may have changed. It neither locks nor allocates while nothing changes.
func (u *Unavailable) Sequence() uint64 {
	if u.nextExpiry.Passed(u.clock) {
		u.mu.Lock()
		u.expire(u.clock.Now())
		u.mu.Unlock()
	}
	return u.changes.Sequence()
}

// Since returns what the result of Has may have changed for after a sequence, or false if it isn't known any more what that is.
func (u *Unavailable) Since(sequence uint64) ([]Change, bool) { return u.changes.Since(sequence) }

// DefaultZone is the zone of every offering if neither the Cluster nor the source has a failure domain, because Karpenter expects an
// offering to have exactly one. Such machines have no failure domain, and nothing outside of Karpenter gets this zone, but a
// Node without another one.
const DefaultZone = capacity.DefaultZone

// Description formats an offering for messages.
func (k Key) Description() string {
	if k.Zone == "" || k.Zone == DefaultZone {
		return k.CapacityType + " " + k.InstanceType
	}
	return k.CapacityType + " " + k.InstanceType + " in zone " + k.Zone
}

// RetryNotice returns until when an offering is unavailable. It is empty if the offering is available.
func RetryNotice(until time.Time) string {
	if until.IsZero() {
		return ""
	}
	return "; not tried again before " + until.UTC().Format(time.TimeOnly+" MST")
}

// Compare orders keys by instance type, zone, capacity type and reservation.
func (k Key) Compare(other Key) int {
	return cmp.Or(
		cmp.Compare(k.InstanceType, other.InstanceType),
		cmp.Compare(k.Zone, other.Zone),
		cmp.Compare(k.CapacityType, other.CapacityType),
		cmp.Compare(k.Reservation, other.Reservation),
	)
}

// expire moves expired entries to past, and drops past entries that no longer count. It reads the entries only when one
// of them has expired.
func (u *Unavailable) expire(now time.Time) {
	if !u.nextExpiry.PassedAt(now) {
		return
	}
	for key, entry := range u.past {
		if now.Sub(entry.Until) > MaxTTL {
			delete(u.past, key)
		}
	}
	var next time.Time
	for key, entry := range u.entries {
		if now.Before(entry.Until) {
			next = change.Earlier(next, entry.Until)
			continue
		}
		delete(u.entries, key)
		if now.Sub(entry.Until) <= MaxTTL {
			u.past[key] = entry
		}
		u.changed(key)
	}
	u.nextExpiry.Set(next)
	u.regroup()
	u.observers.Notify()
}
