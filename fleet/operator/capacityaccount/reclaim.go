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

// maxReclaimingFor is the number of clusters that the status of a pool names.
const maxReclaimingFor = 8

// excess returns a cluster's usage of a pool beyond the amount that it may keep.
func (r *reconciliation) excess(key, pool string) int64 {
	keep, reclaimed := r.decision.Reclaims[key][pool]
	if !reclaimed {
		return 0
	}
	return max(0, r.clusters[key].used[pool]-keep)
}

// summarizeReclaim sets the lent and reclaimed amounts of a pool.
func (r *reconciliation) summarizeReclaim(pool *autonodev1alpha1.LeasedPool, entry *autonodev1alpha1.CapacityPoolStatus) {
	guaranteed, needed, excess := false, int64(0), int64(0)
	for _, key := range r.keys {
		of, granted := r.clusters[key], r.decision.Record[key].Granted[pool.Name]
		if of.member != nil {
			guaranteed = guaranteed || of.member.entry.guaranteed[pool.Name] > 0
			granted = max(granted, of.member.entry.guaranteed[pool.Name])
		}
		needed += granted
		excess += r.excess(key, pool.Name)
	}
	// Guaranteed amounts and grants beyond them exceed the limit by the lent amount.
	if lent := needed - r.account.limits[pool.Name]; guaranteed && lent > 0 {
		entry.Lent = format(pool.Resource, lent)
	}
	if excess > 0 {
		clusters := r.decision.ReclaimedFor[pool.Name]
		entry.Reclaiming, entry.ReclaimingFor = format(pool.Resource, excess), clusters[:min(len(clusters), maxReclaimingFor)]
	}
}

// overdue are the clusters that use more than they may keep, after the deadline by this operator's clock.
func (r *reconciliation) overdue() (overdue []string) {
	for _, key := range r.keys {
		before := r.reclaims[key]
		r.reclaims[key] = map[string][]division.Step{}
		for _, pool := range slices.Sorted(maps.Keys(r.decision.Reclaims[key])) {
			steps := division.Follow(before[pool], r.decision.Reclaims[key][pool], r.now, r.account.gracePeriod)
			r.reclaims[key][pool] = steps
			used := r.clusters[key].used[pool]
			step := division.Exceeded(steps, used)
			if used <= step.Limit {
				continue
			}
			if left := step.By.Add(overdueAfter).Sub(r.now); left > 0 {
				r.requeue(left)
				continue
			}
			overdue = append(overdue, fmt.Sprintf("%s of %s of %s", r.amount(pool, used-step.Limit), pool, key))
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
				if keep, reclaimed := r.decision.Reclaims[key][pool.Name]; reclaimed {
					keeps = append(keeps, fmt.Sprintf("%s keeps %s", key, r.amount(pool.Name, keep)))
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
func (r *reconciliation) mayPreempt(of *cluster) bool {
	return r.found.Spec.Preemption == autonodev1alpha1.PreemptionLowerPriority && slices.ContainsFunc(r.keys, func(key string) bool {
		other := r.clusters[key].member
		return other != nil && other.entry.priority < of.member.entry.priority
	})
}
