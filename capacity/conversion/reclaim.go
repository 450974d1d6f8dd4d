// SPDX-License-Identifier: Apache-2.0

package conversion

import (
	"maps"
	"slices"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
)

const (
	// maxReclaims is the number of entries of a lease, and of a cluster in the record.
	maxReclaims = 256
	// maxReclaimedFor is the number of clusters that a pool is reclaimed for by name.
	maxReclaimedFor = 8
)

// Reclaims reads from an account's record the amounts that a cluster was asked to return, by pool.
func Reclaims(grant *autonodev1alpha1.CapacityGrant) map[string][]capacity.Reclaim {
	reclaims := map[string][]capacity.Reclaim{}
	for i := range grant.Reclaims {
		r := &grant.Reclaims[i]
		add(reclaims, r.Pool, r.Keep, &r.By)
	}
	return reclaims
}

// leasedReclaims reads from a lease the amounts that its cluster has to return, by pool.
func leasedReclaims(l *autonodev1alpha1.CapacityLease) map[string][]capacity.Reclaim {
	if len(l.Spec.Reclaim) == 0 {
		return nil
	}
	reclaims := map[string][]capacity.Reclaim{}
	for i := range l.Spec.Reclaim {
		r := &l.Spec.Reclaim[i]
		add(reclaims, r.Pool, r.Keep, &r.By)
	}
	return reclaims
}

// add leaves out a reclaim with a malformed deadline: nothing is drained for it.
func add(reclaims map[string][]capacity.Reclaim, pool string, keep int64, by *scalar.Time) {
	if by.Malformed == "" && !by.IsZero() {
		reclaims[pool] = append(reclaims[pool], capacity.Reclaim{Keep: max(0, min(keep, autonodev1alpha1.MaxAmount)), By: by.At()})
	}
}

// RecordedReclaims is the reverse of Reclaims.
func RecordedReclaims(reclaims map[string][]capacity.Reclaim) []autonodev1alpha1.RecordedReclaim {
	var list []autonodev1alpha1.RecordedReclaim
	each(reclaims, func(pool string, r capacity.Reclaim) {
		list = append(list, autonodev1alpha1.RecordedReclaim{Pool: pool, Keep: r.Keep, By: scalar.NewTime(r.By)})
	})
	return list
}

// LeaseReclaims writes the amounts that the cluster of a lease has to return, and for which clusters.
func LeaseReclaims(reclaims map[string][]capacity.Reclaim, clusters map[string][]string) []autonodev1alpha1.CapacityReclaim {
	var list []autonodev1alpha1.CapacityReclaim
	each(reclaims, func(pool string, r capacity.Reclaim) {
		list = append(list, autonodev1alpha1.CapacityReclaim{
			Pool: pool, Keep: r.Keep, By: scalar.NewTime(r.By), For: clusters[pool][:min(len(clusters[pool]), maxReclaimedFor)],
		})
	})
	return list
}

// each calls f in the order of pools and deadlines, for as many as a list may have.
func each(reclaims map[string][]capacity.Reclaim, f func(pool string, r capacity.Reclaim)) {
	count := 0
	for _, pool := range slices.Sorted(maps.Keys(reclaims)) {
		for _, r := range reclaims[pool] {
			if count++; count > maxReclaims {
				return
			}
			f(pool, r)
		}
	}
}

// Retained reads from an account's record the part of a cluster's guaranteed amounts that isn't lent, by pool.
func Retained(grant *autonodev1alpha1.CapacityGrant) map[string]capacity.Retained {
	retained := map[string]capacity.Retained{}
	for i := range grant.Retained {
		r := &grant.Retained[i]
		retained[r.Pool] = capacity.Retained{Amount: max(0, min(r.Amount, autonodev1alpha1.MaxAmount)), Until: r.Until.At()}
	}
	return retained
}

// RecordedRetained is the reverse of Retained.
func RecordedRetained(retained map[string]capacity.Retained) []autonodev1alpha1.RetainedAmount {
	var list []autonodev1alpha1.RetainedAmount
	for _, pool := range slices.Sorted(maps.Keys(retained)) {
		list = append(list, autonodev1alpha1.RetainedAmount{Pool: pool, Amount: retained[pool].Amount, Until: scalar.NewTime(retained[pool].Until)})
	}
	return list
}

// Reclaimable is the amounts that the cluster of a lease may request although others use them.
func Reclaimable(l *autonodev1alpha1.CapacityLease) capacity.Amounts {
	return ofPools(l, func(pool *autonodev1alpha1.LeasedPool) int64 { return pool.Reclaimable })
}
