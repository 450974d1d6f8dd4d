// SPDX-License-Identifier: Apache-2.0

package conversion

import (
	"maps"
	"slices"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/fleet/division"
)

const (
	// maxReclaimSteps is the number of entries in the status of a lease.
	maxReclaimSteps = 256
	// maxReclaimedFor is the number of clusters that a pool is reclaimed for by name.
	maxReclaimedFor = 8
)

// reclaims reads from a lease the amounts that its cluster may keep of pools of which it has to return the rest.
func reclaims(l *autonodev1alpha1.CapacityLease) division.Amounts {
	if len(l.Spec.Reclaim) == 0 {
		return nil
	}
	keep := division.Amounts{}
	for i := range l.Spec.Reclaim {
		keep[l.Spec.Reclaim[i].Pool] = max(0, min(l.Spec.Reclaim[i].Limit, autonodev1alpha1.MaxAmount))
	}
	return keep
}

// LeaseReclaims is the reverse of reclaims, with the clusters that request the rest.
func LeaseReclaims(keep division.Amounts, clusters map[string][]string) []autonodev1alpha1.CapacityReclaim {
	var list []autonodev1alpha1.CapacityReclaim
	for _, pool := range slices.Sorted(maps.Keys(keep)) {
		list = append(list, autonodev1alpha1.CapacityReclaim{Pool: pool, Limit: keep[pool], For: clusters[pool][:min(len(clusters[pool]), maxReclaimedFor)]})
	}
	return list
}

// ReclaimSteps reads deadlines from the status of a lease, by pool. Without a readable deadline, an amount has none yet.
func ReclaimSteps(s *autonodev1alpha1.CapacityLeaseStatus) map[string][]division.Step {
	steps := map[string][]division.Step{}
	for i := range s.Reclaim {
		if step := &s.Reclaim[i]; step.By.Malformed == "" && !step.By.IsZero() {
			steps[step.Pool] = append(steps[step.Pool], division.Step{Limit: step.Limit, By: step.By.At()})
		}
	}
	return steps
}

// SetReclaimSteps is the reverse of ReclaimSteps.
func SetReclaimSteps(s *autonodev1alpha1.CapacityLeaseStatus, reclaims []division.Reclaim) {
	for i := range reclaims {
		for _, step := range reclaims[i].Steps {
			s.Reclaim = append(s.Reclaim, autonodev1alpha1.CapacityReclaimStep{Pool: reclaims[i].Pool, Limit: step.Limit, By: scalar.NewTime(step.By)})
		}
	}
	s.Reclaim = s.Reclaim[:min(len(s.Reclaim), maxReclaimSteps)]
}

// Retained reads from an account's record the part of a cluster's guaranteed amounts that isn't lent, by pool.
func Retained(grant *autonodev1alpha1.CapacityGrant) map[string]division.Retained {
	retained := map[string]division.Retained{}
	for i := range grant.Retained {
		r := &grant.Retained[i]
		retained[r.Pool] = division.Retained{Amount: max(0, min(r.Amount, autonodev1alpha1.MaxAmount)), Until: r.Until.At()}
	}
	return retained
}

// RecordedRetained is the reverse of Retained.
func RecordedRetained(retained map[string]division.Retained) []autonodev1alpha1.RetainedAmount {
	var list []autonodev1alpha1.RetainedAmount
	for _, pool := range slices.Sorted(maps.Keys(retained)) {
		list = append(list, autonodev1alpha1.RetainedAmount{Pool: pool, Amount: retained[pool].Amount, Until: scalar.NewTime(retained[pool].Until)})
	}
	return list
}
