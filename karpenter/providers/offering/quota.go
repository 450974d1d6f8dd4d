// SPDX-License-Identifier: Apache-2.0

package offering

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/change"
)

const (
	// ProbeTTL is how long a quota stays closed for other launches while one probes it. A machine that takes longer has not failed for the
	// quota.
	ProbeTTL = 15 * time.Minute
	// maxQuotas is how many quotas are remembered: the infrastructure has a few, and an account's other clusters report any number.
	maxQuotas = 512
)

// QuotaName identifies a quota of the infrastructure, and describes in words what it counts.
type QuotaName struct {
	Name string
	// Counts is empty if it isn't known what the quota counts: then all machines are alike to it.
	Counts capacity.Resource
}

// Quota is what a machine of an offering needs of a quota, in the unit of what that counts.
type Quota struct {
	QuotaName
	Amount int64
}

// quotaKey distinguishes what this cluster has found of a quota from what others of the account report.
type quotaKey struct {
	QuotaName
	shared bool
}

// ClosedQuota is a quota that was exhausted lately.
type ClosedQuota struct {
	QuotaName
	// AtLeast is what machines need that it is closed for; 1 for all machines that need any.
	AtLeast int64
	// Until is when one launch probes the quota. The others wait for how that ends.
	Until time.Time
	// Failures in a row.
	Failures int
	// Failed is the offering whose machine failed last, and Family its family; empty if another cluster of the account reports it.
	Failed Key
	Family string
	// Shared: another cluster of the account reports it.
	Shared bool
	// Probe is the NodeClaim that is being launched, and ProbeUntil how long others wait for it; empty for none.
	Probe      string
	ProbeUntil time.Time

	// freed is what machines that have gone since needed.
	freed int64
	// opened: Until or ProbeUntil has passed, and the log of changes has that.
	opened bool
}

// concerns reports whether the quota is closed for what a machine needs of it.
func (c *ClosedQuota) concerns(q Quota) bool { return c.Counts == "" || q.Amount >= c.AtLeast }

// isProbed reports whether a launch other than this NodeClaim's probes the quota.
func (c *ClosedQuota) isProbed(nodeClaim string, now time.Time) bool {
	return c.Probe != "" && c.Probe != nodeClaim && now.Before(c.ProbeUntil)
}

// Exceeded is the quota that a machine failed for.
type Exceeded struct {
	Quota
	// Left of the quota, as the infrastructure reports; -1 if it doesn't.
	Left int64
	// Family of the instance type, and the reason of the event on the NodeClaim.
	Family, Reason string
}

// MarkExceeded is Mark for an offering whose machine exceeded a quota. All offerings are unavailable that need more of the quota than is left
// or, if the infrastructure doesn't say what that is, at least as much as the machine. If a smaller machine fails meanwhile, nothing is left.
// A reservation is unavailable by itself, and no quota is closed.
func (u *Unavailable) MarkExceeded(key Key, e Exceeded) ClosedQuota {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := u.clock.Now()
	u.expire(now)
	atLeast := max(1, e.Amount)
	if e.Left >= 0 {
		atLeast = min(atLeast, e.Left+1)
	}
	if !counts(key) {
		return ClosedQuota{Until: u.mark(Entry{Key: key, Family: e.Family, Reason: e.Reason, Lacks: LackOfQuota})}
	}
	c, known := u.quotas[quotaKey{QuotaName: e.QuotaName}]
	next := ClosedQuota{QuotaName: e.QuotaName, AtLeast: atLeast, Failures: 1, Failed: key, Family: e.Family}
	switch {
	case known && now.Before(c.Until):
		// Several machines launched at once fail together, which doesn't extend it.
		next.Until, next.Failures, next.freed = c.Until, c.Failures, c.freed
		if next.AtLeast >= c.AtLeast {
			next.AtLeast = c.AtLeast
		} else if e.Left < 0 {
			next.AtLeast = 1
		}
	case known:
		next.Failures += c.Failures
	}
	if next.Until.IsZero() {
		next.Until = now.Add(ttl(next.Failures))
	}
	u.setQuota(next)
	if c, known := u.quotas[quotaKey{e.QuotaName, true}]; known && !now.Before(c.Until) {
		delete(u.quotas, quotaKey{e.QuotaName, true}) // this cluster has its own finding now
	}
	entry := u.entries[key]
	delete(u.past, key)
	if entry.Until.Before(next.Until) {
		entry.Until = next.Until
	}
	entry.Key, entry.Family, entry.Reason, entry.Lacks, entry.Failures, entry.Quota = key, e.Family, e.Reason, LackOfQuota, max(entry.Failures, next.Failures), e.QuotaName
	u.entries[key] = entry
	u.changed(key)
	u.regroup()
	u.nextExpiry.Advance(next.Until)
	u.observers.Notify()
	return next
}

// setQuota closes a quota. u.mu must be held.
func (u *Unavailable) setQuota(c ClosedQuota) {
	key := quotaKey{c.QuotaName, c.Shared}
	if _, known := u.quotas[key]; !known && len(u.quotas) >= maxQuotas {
		return // each offering that failed is closed by itself
	}
	u.quotas[key] = &c
	u.quotaChanged(c.QuotaName)
}

func (u *Unavailable) quotaChanged(name QuotaName) { u.changes.Add(Change{Group: Group{Quota: name}}) }

// openQuota forgets a quota, and what failed for it. u.mu must be held.
func (u *Unavailable) openQuota(c *ClosedQuota) {
	delete(u.quotas, quotaKey{c.QuotaName, c.Shared})
	u.quotaChanged(c.QuotaName)
	u.release(c)
}

// release makes the offerings available again that failed for a quota. u.mu must be held.
func (u *Unavailable) release(c *ClosedQuota) {
	if c.Shared {
		return
	}
	for key, entry := range u.entries {
		if entry.Lacks == LackOfQuota && entry.Quota == c.QuotaName {
			delete(u.entries, key)
			u.changed(key)
		}
	}
}

// CountsQuotas reports whether any quota is closed: otherwise Has and Admit needn't know which count an offering.
func (u *Unavailable) CountsQuotas() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.quotas) > 0
}

// each yields what is known of the quotas that concern what a machine needs of them. u.mu must be held.
func (u *Unavailable) each(quotas []Quota) iter.Seq[*ClosedQuota] {
	return func(yield func(*ClosedQuota) bool) {
		for _, q := range quotas {
			for _, shared := range [...]bool{false, true} {
				if c, known := u.quotas[quotaKey{q.QuotaName, shared}]; known && c.concerns(q) && !yield(c) {
					return
				}
			}
		}
	}
}

// IsClosed reports whether launches wait: for the end of the back-off, or for the probe.
func (c *ClosedQuota) IsClosed(now time.Time) bool { return now.Before(c.Until) || c.isProbed("", now) }

// closedBy returns the quota that closes an offering to a NodeClaim; nil for none. u.mu must be held.
func (u *Unavailable) closedBy(quotas []Quota, nodeClaim string, now time.Time) *ClosedQuota {
	for c := range u.each(quotas) {
		if now.Before(c.Until) || c.isProbed(nodeClaim, now) {
			return c
		}
	}
	return nil
}

// Admit reports whether a NodeClaim may be launched as an offering that these quotas count. If the back-off of one has passed, it is the
// one launch that probes it, and every other one waits until Withdraw, Launched or MarkExceeded.
func (u *Unavailable) Admit(nodeClaim string, key Key, quotas []Quota) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.quotas) == 0 || !counts(key) {
		return true
	}
	now := u.clock.Now()
	if u.closedBy(quotas, nodeClaim, now) != nil {
		return false
	}
	for c := range u.each(quotas) {
		if c.Probe == nodeClaim && now.Before(c.ProbeUntil) {
			continue
		}
		c.Probe, c.ProbeUntil = nodeClaim, now.Add(ProbeTTL)
		u.quotaChanged(c.QuotaName)
		u.nextExpiry.Advance(c.ProbeUntil)
		u.observers.Notify()
	}
	return true
}

// counts reports whether quotas count an offering: a reservation has quota of its own.
func counts(key Key) bool {
	return key.CapacityType != karpv1.CapacityTypeReserved && key.Reservation == ""
}

// Withdraw records that a NodeClaim's launch has ended without a word on quotas: another one may probe them.
func (u *Unavailable) Withdraw(nodeClaim string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, c := range u.quotas {
		if c.Probe == nodeClaim {
			c.Probe, c.ProbeUntil = "", time.Time{}
			u.quotaChanged(c.QuotaName)
			u.observers.Notify()
		}
	}
}

// Launched records that the infrastructure has made a NodeClaim's machine. The quotas that it has probed are open.
func (u *Unavailable) Launched(nodeClaim string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, c := range u.quotas {
		if c.Probe == nodeClaim {
			u.openQuota(c)
			u.observers.Notify()
		}
	}
}

// Freed records that a machine is gone that these quotas counted. A quota is probed early once as much has been returned as it is closed for.
func (u *Unavailable) Freed(quotas []Quota) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := u.clock.Now()
	for _, q := range quotas {
		for _, shared := range [...]bool{false, true} {
			c, known := u.quotas[quotaKey{q.QuotaName, shared}]
			if !known || !now.Before(c.Until) {
				continue
			}
			if c.freed += q.Amount; c.Counts == "" || c.freed >= c.AtLeast {
				u.halfOpen(c, now)
				u.observers.Notify()
			}
		}
	}
}

// halfOpen ends the back-off of a quota early. u.mu must be held.
func (u *Unavailable) halfOpen(c *ClosedQuota, now time.Time) {
	c.Until, c.opened, c.freed = now, true, 0
	u.quotaChanged(c.QuotaName)
	u.release(c)
}

// Share takes over the quotas that other clusters of the account report as exhausted: all of them at each call. Once one of them isn't
// reported any more, one launch of this cluster probes it.
func (u *Unavailable) Share(reported []ClosedQuota) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(reported)+len(u.quotas) == 0 {
		return
	}
	now := u.clock.Now()
	u.expire(now)
	changed, still := false, make(map[QuotaName]bool, len(reported))
	for i := range reported {
		next := reported[i]
		if !now.Before(next.Until) {
			continue
		}
		still[next.QuotaName] = true
		next.Shared, next.AtLeast = true, max(1, next.AtLeast)
		if c, known := u.quotas[quotaKey{next.QuotaName, true}]; known {
			if c.AtLeast == next.AtLeast && c.Until.Equal(next.Until) {
				continue
			}
			next.Probe, next.ProbeUntil = c.Probe, c.ProbeUntil // which goes on
		}
		u.setQuota(next)
		u.nextExpiry.Advance(next.Until)
		changed = true
	}
	for _, c := range u.quotas {
		if c.Shared && !still[c.QuotaName] && now.Before(c.Until) {
			u.halfOpen(c, now)
			changed = true
		}
	}
	if changed {
		u.observers.Notify()
	}
}

// Quotas returns those that were exhausted lately, ordered by name. A further failure of one counts as consecutive.
func (u *Unavailable) Quotas() []ClosedQuota {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.quotas) == 0 {
		return nil
	}
	now := u.clock.Now()
	u.expire(now)
	var closed []ClosedQuota
	for _, c := range u.quotas {
		closed = append(closed, *c)
	}
	slices.SortFunc(closed, func(a, b ClosedQuota) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Counts, b.Counts), shared(a)-shared(b))
	})
	return closed
}

func shared(c ClosedQuota) int {
	if c.Shared {
		return 1
	}
	return 0
}

// ClosedBy returns the quota that makes an offering unavailable, of those that count it; false if none does.
func (u *Unavailable) ClosedBy(key Key, quotas []Quota) (ClosedQuota, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !counts(key) {
		return ClosedQuota{}, false
	}
	if c := u.closedBy(quotas, "", u.clock.Now()); c != nil {
		return *c, true
	}
	return ClosedQuota{}, false
}

// Description reports which machines the quota is closed for, until when, and what happens then.
func (c *ClosedQuota) Description() string {
	text := fmt.Sprintf("quota %q is exhausted", c.Name)
	if c.Shared {
		text = fmt.Sprintf("quota %q is exhausted, as another cluster of the account reports", c.Name)
	}
	if c.Counts != "" && c.Counts != capacity.Machines && c.AtLeast > 1 {
		text += fmt.Sprintf(" for machines with %s or more", c.amount())
	}
	if c.Probe != "" {
		return text + "; NodeClaim " + c.Probe + " probes it, and the others wait"
	}
	return text + ", until one launch probes it at " + c.Until.UTC().Format(time.TimeOnly+" MST")
}

// amount formats AtLeast. What is left is less than a round number.
func (c *ClosedQuota) amount() string {
	switch c.Counts {
	case capacity.VCPUs:
		return resource.NewMilliQuantity(c.AtLeast, resource.DecimalSI).String() + " vCPUs"
	case capacity.Memory:
		return fmt.Sprintf("%.4g GiB of memory", float64(c.AtLeast)/(1<<30))
	case capacity.GPUs:
		return fmt.Sprintf("%d GPUs", c.AtLeast)
	}
	return fmt.Sprint(c.AtLeast)
}

// expireQuotas records which quotas are probed from now on, forgets those of which no failure counts any more, and returns when that
// happens next. u.mu must be held.
func (u *Unavailable) expireQuotas(now time.Time) (next time.Time) {
	for _, c := range u.quotas {
		if c.Probe != "" && !now.Before(c.ProbeUntil) {
			c.Probe, c.ProbeUntil, c.opened = "", time.Time{}, false
		}
		switch forget := c.Until.Add(MaxTTL); {
		case c.Probe != "":
			next = change.Earlier(next, c.ProbeUntil)
		case now.Before(c.Until):
			next = change.Earlier(next, c.Until)
		case now.After(forget):
			u.openQuota(c)
		default:
			if !c.opened {
				c.opened = true
				u.quotaChanged(c.QuotaName)
			}
			next = change.Earlier(next, forget.Add(time.Nanosecond))
		}
	}
	return next
}
