// SPDX-License-Identifier: Apache-2.0

package offering

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/capacity"
)

// Quota is what a machine of an offering needs of a quota, in the unit of what that counts.
type Quota struct {
	capacity.QuotaName
	Amount int64
}

// ClosedQuota makes offerings unavailable that count against an exhausted quota.
type ClosedQuota struct {
	capacity.QuotaName
	// AtLeast is the smallest amount that is too much; 1 if nothing is left.
	AtLeast int64
	Until   time.Time
	// Shared: another cluster of the account reports it.
	Shared bool
}

// quotaKey keeps findings of this cluster and of others apart.
type quotaKey struct {
	capacity.QuotaName
	shared bool
}

// MarkExceeded is Mark for an offering whose machine exceeded a quota. remaining is the rest of the quota, or -1 if the infrastructure
// doesn't report it. All offerings are unavailable that need more or, if the rest isn't known, at least as much as the machine. If a
// smaller machine fails meanwhile, nothing is left. A reservation is unavailable by itself, and closes no quota.
func (u *Unavailable) MarkExceeded(key Key, quota Quota, remaining int64, reason string) ClosedQuota {
	u.mu.Lock()
	defer u.mu.Unlock()
	entry := Entry{Key: key, Reason: reason, Lacks: LackOfQuota}
	if !counts(key) {
		return ClosedQuota{Until: u.mark(entry)}
	}
	u.expire(u.clock.Now())
	entry.Quota = Quota{quota.QuotaName, max(1, quota.Amount)}
	if remaining >= 0 {
		entry.Quota.Amount = min(entry.Quota.Amount, remaining+1)
	} else if entry.Quota.Amount < u.quotas[quotaKey{quota.QuotaName, false}].AtLeast {
		entry.Quota.Amount = 1
	}
	u.mark(entry)
	return u.quotas[quotaKey{quota.QuotaName, false}]
}

// counts reports whether quotas count an offering: a reservation has quota of its own.
func counts(key Key) bool {
	return key.CapacityType != karpv1.CapacityTypeReserved && key.Reservation == ""
}

// CountsQuotas reports whether any quota is closed: otherwise the caller of Has needn't know which count an offering.
func (u *Unavailable) CountsQuotas() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.quotas) > 0
}

// ClosedBy returns the quota that makes an offering unavailable, of those that count it; false if none does.
func (u *Unavailable) ClosedBy(key Key, quotas []Quota) (ClosedQuota, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.closedBy(key, quotas)
}

func (u *Unavailable) closedBy(key Key, quotas []Quota) (closed ClosedQuota, ok bool) {
	if !counts(key) {
		return ClosedQuota{}, false
	}
	now := u.clock.Now()
	for _, q := range quotas {
		for _, shared := range [...]bool{false, true} {
			if c := u.quotas[quotaKey{q.QuotaName, shared}]; now.Before(c.Until) && (c.Counts == "" || q.Amount >= c.AtLeast) {
				return c, true
			}
		}
	}
	return ClosedQuota{}, false
}

// Share replaces the quotas that other clusters of the account report as exhausted.
func (u *Unavailable) Share(reported []ClosedQuota) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if slices.Equal(u.shared, reported) {
		return
	}
	u.shared = reported
	u.expire(u.clock.Now())
	u.regroup()
	u.observers.Notify()
}

// Quotas returns the exhausted quotas, ordered by name.
func (u *Unavailable) Quotas() []ClosedQuota {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.expire(u.clock.Now())
	return slices.SortedFunc(maps.Values(u.quotas), func(a, b ClosedQuota) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Counts, b.Counts), cmp.Compare(a.AtLeast, b.AtLeast))
	})
}

// regroupQuotas finds the quotas that entries and other clusters' reports close: each for the smallest amount of its entries, until the
// last of them ends. u.mu must be held.
func (u *Unavailable) regroupQuotas() {
	quotas := map[quotaKey]ClosedQuota{}
	for _, entry := range u.entries {
		next := ClosedQuota{QuotaName: entry.Quota.QuotaName, AtLeast: entry.Quota.Amount, Until: entry.Until}
		if next.Name == "" {
			continue
		}
		if c, known := quotas[quotaKey{next.QuotaName, false}]; known {
			next.AtLeast = min(next.AtLeast, c.AtLeast)
			if c.Until.After(next.Until) {
				next.Until = c.Until
			}
		}
		quotas[quotaKey{next.QuotaName, false}] = next
	}
	now := u.clock.Now()
	for _, next := range u.shared {
		if next.Shared, next.AtLeast = true, max(1, next.AtLeast); now.Before(next.Until) {
			quotas[quotaKey{next.QuotaName, true}] = next
			u.nextExpiry.Advance(next.Until)
		}
	}
	if !maps.Equal(u.quotas, quotas) {
		u.quotas = quotas
		u.changes.Add(Change{})
	}
}

// Description reports which machines the quota is closed for, and until when.
func (c *ClosedQuota) Description() string {
	text := fmt.Sprintf("quota %q is exhausted", c.Name)
	if c.Shared {
		text += ", as another cluster of the account reports"
	}
	if c.Counts != "" && c.Counts != capacity.Machines && c.AtLeast > 1 {
		text += fmt.Sprintf(" for machines with %s or more", c.amount())
	}
	return text + ", until " + c.Until.UTC().Format(time.TimeOnly+" MST")
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
