// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/fleet/division"
)

// overdueAfter is how long after a deadline a borrower is reported: its pods end and its machines go.
const overdueAfter = 5 * time.Minute

// summarizeReclaim sets the lent and reclaimed amounts of a pool.
func (r *reconciliation) summarizeReclaim(pool *autonodev1alpha1.LeasedPool, entry *autonodev1alpha1.CapacityPoolStatus) {
	guaranteed, needed, excess, clusters := false, int64(0), int64(0), []string(nil)
	for _, key := range r.keys {
		c, granted := r.clusters[key], r.decision.Record[key].Granted[pool.Name]
		if c.member != nil {
			guaranteed = guaranteed || c.member.entry.guaranteed[pool.Name] > 0
			granted = max(granted, c.member.entry.guaranteed[pool.Name])
		}
		needed += granted
		used := r.clusters[key].used[pool.Name]
		if limit, reclaimed := r.decision.Reclaims[key].Limit(pool.Name); reclaimed && used > limit {
			excess, clusters = excess+used-limit, r.decision.Reclaims[key].Next(pool.Name, used).For
		}
	}
	// Guaranteed amounts and grants beyond them exceed the limit by the lent amount.
	if lent := needed - r.account.limits[pool.Name]; guaranteed && lent > 0 {
		entry.Lent = format(pool.Resource, lent)
	}
	if excess > 0 {
		entry.Reclaiming, entry.ReclaimingFor = format(pool.Resource, excess), clusters
	}
}

// overdue are the clusters that use more than they may keep, after the deadline by this operator's clock.
func (r *reconciliation) overdue() (overdue []string) {
	for _, key := range r.keys {
		r.reclaims[key] = division.Follow(r.reclaims[key], r.decision.Reclaims[key], r.now, r.account.gracePeriod)
		for _, pool := range slices.Sorted(maps.Keys(r.reclaims[key])) {
			used := r.clusters[key].used[pool]
			next := r.reclaims[key].Next(pool, used)
			if used <= next.Limit {
				continue
			}
			if wait := next.By.Add(overdueAfter).Sub(r.now); wait > 0 {
				r.requeue(wait)
				continue
			}
			overdue = append(overdue, fmt.Sprintf("%s of %s of %s", r.amount(pool, used-next.Limit), pool, key))
		}
	}
	return overdue
}

// recordReclaims writes an event for each pool of which clusters have to return something, or nothing any more.
func (r *reconciliation) recordReclaims() {
	before := map[string]bool{}
	for i := range r.before.Pools {
		before[r.before.Pools[i].Name] = r.before.Pools[i].Reclaiming != ""
	}
	for i := range r.found.Status.Pools {
		switch pool := &r.found.Status.Pools[i]; {
		case before[pool.Name] == (pool.Reclaiming != ""):
		case before[pool.Name]:
			r.Recorder.Eventf(r.found, nil, corev1.EventTypeNormal, autonodev1alpha1.CapacityReclaimedReason, "DivideCapacity",
				"no cluster has to return anything of %s any more", pool.Name)
		default:
			var keeps []string
			for _, key := range r.keys {
				if limit, reclaimed := r.decision.Reclaims[key].Limit(pool.Name); reclaimed {
					keeps = append(keeps, fmt.Sprintf("%s keeps %s", key, r.amount(pool.Name, limit)))
				}
			}
			r.Recorder.Eventf(r.found, nil, corev1.EventTypeNormal, autonodev1alpha1.CapacityReclaimingReason, "DivideCapacity",
				"%s reclaims %s: within %s, %s", strings.Join(pool.ReclaimingFor, ", "), pool.Name,
				r.account.gracePeriod, strings.Join(keeps, ", "))
		}
	}
}

// amount formats an amount of a pool.
func (r *reconciliation) amount(pool string, amount int64) string {
	for i := range r.account.pools {
		if r.account.pools[i].Name == pool {
			return format(r.account.pools[i].Resource, amount)
		}
	}
	return fmt.Sprint(amount)
}

// mayPreempt reports whether a cluster's requests reclaim amounts that aren't guaranteed to it.
func (r *reconciliation) mayPreempt(c *cluster) bool {
	return r.found.Spec.Preemption == autonodev1alpha1.PreemptionLowerPriority && slices.ContainsFunc(r.keys, func(key string) bool {
		other := r.clusters[key].member
		return other != nil && other.entry.priority < c.member.entry.priority
	})
}
