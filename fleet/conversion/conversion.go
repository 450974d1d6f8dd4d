// SPDX-License-Identifier: Apache-2.0

// Package conversion reads CapacityAccounts, CapacityLeases and Machines in the terms of packages division and cost, and writes back what a
// Karpenter reports. Operator and Karpenter both use it, so that they count alike.
package conversion

import (
	"maps"
	"slices"
	"time"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/fleet/cost"
	"github.com/autonode-io/autonode/fleet/division"
)

const (
	// maxNumber is how much of a malformed number a message repeats.
	maxNumber = 32
	// maxReclaims is the number of reclaims in the status of a lease.
	maxReclaims = 256
)

// ReservationsAt returns an account's reservations at a time, as package cost has them.
func ReservationsAt(spec *autonodev1alpha1.CapacityAccountSpec, now time.Time) []cost.Reservation {
	reservations := make([]cost.Reservation, len(spec.Reservations))
	for i := range spec.Reservations {
		r := &spec.Reservations[i]
		reservations[i] = cost.Reservation{
			ID: r.ID, InstanceType: r.InstanceType, Zone: r.Zone, Count: int64(r.Count), Expired: r.Expires != nil && !r.Expires.At().After(now),
			Prepaid: r.Billing == autonodev1alpha1.BilledPrepaid,
		}
		reservations[i].Price, _ = reservationPrice(r.Price) // CommitmentsAt reports the error
	}
	return reservations
}

// Rules say which machines take from which pool.
func Rules(pools []autonodev1alpha1.LeasedPool) []division.Rule {
	rules := make([]division.Rule, len(pools))
	for i, p := range pools {
		rules[i] = division.Rule{
			Pool: p.Name, Resource: capacity.Resource(p.Resource), Selector: division.Selector(p.Selector), Reservation: p.Reservation,
		}
	}
	return rules
}

// Lease returns a lease without its report, which is hostile to whoever didn't write it: see BoundedReport. Its ID is the
// object's UID.
func Lease(l *autonodev1alpha1.CapacityLease) division.Lease {
	lease := division.Lease{
		ID: string(l.UID), Sequence: l.Spec.Sequence, Limit: division.Amounts{}, Granted: division.Amounts{},
		Available: division.Amounts{}, Attainable: division.Amounts{}, Reclaims: Reclaims(l.Spec.Reclaim),
	}
	for i := range l.Spec.Pools {
		pool := &l.Spec.Pools[i]
		set := func(amounts division.Amounts, amount int64) {
			if amount > 0 {
				amounts[pool.Name] = amount
			}
		}
		set(lease.Limit, pool.Limit)
		set(lease.Granted, pool.Granted)
		set(lease.Available, pool.Available)
		set(lease.Attainable, pool.Attainable)
	}
	return lease
}

// SetReport writes what a Holder reports into a lease's status, within the bounds. What doesn't fit is left out: the newest requests.
func SetReport(s *autonodev1alpha1.CapacityLeaseStatus, report division.Report) {
	s.AcknowledgedSequence, s.Reserved, s.Used, s.Requests = report.Sequence, poolAmounts(report.Reserved), poolAmounts(report.Used), nil
	launches := int64(0)
	for _, request := range report.Requests {
		count := min(request.Count, autonodev1alpha1.MaxRequestedLaunches-launches)
		if count <= 0 || len(s.Requests) == autonodev1alpha1.MaxRequests {
			break
		}
		launches += count
		s.Requests = append(s.Requests, autonodev1alpha1.CapacityRequest{Charges: poolAmounts(request.Charges), Count: count})
	}
}

// poolAmounts are sorted by pool.
func poolAmounts(amounts division.Amounts) []autonodev1alpha1.PoolAmount {
	var list []autonodev1alpha1.PoolAmount
	for _, pool := range slices.Sorted(maps.Keys(amounts)) {
		if amounts[pool] > 0 {
			list = append(list, autonodev1alpha1.PoolAmount{Pool: pool, Amount: amounts[pool]})
		}
	}
	return list
}

// BoundedReport returns the report in a lease of a program that isn't trusted. Only amounts of pools that the lease names and within
// the bounds are in it.
func BoundedReport(l *autonodev1alpha1.CapacityLease) division.Report {
	named := make(map[string]bool, len(l.Spec.Pools))
	for _, pool := range l.Spec.Pools {
		named[pool.Name] = true
	}
	bounded := func(list []autonodev1alpha1.PoolAmount, limit int64) division.Amounts {
		amounts := division.Amounts{}
		for _, entry := range list {
			if named[entry.Pool] && entry.Amount > 0 {
				amounts[entry.Pool] = max(amounts[entry.Pool], min(entry.Amount, limit))
			}
		}
		return amounts
	}
	report := division.Report{
		Sequence: l.Status.AcknowledgedSequence, Reserved: bounded(l.Status.Reserved, autonodev1alpha1.MaxAmount),
		Used: bounded(l.Status.Used, autonodev1alpha1.MaxAmount),
	}
	launches := int64(0)
	for _, request := range l.Status.Requests[:min(len(l.Status.Requests), autonodev1alpha1.MaxRequests)] {
		count := min(request.Count, autonodev1alpha1.MaxRequestedLaunches-launches)
		charges := bounded(request.Charges, autonodev1alpha1.MaxCharge)
		if count <= 0 || len(charges) == 0 {
			continue
		}
		launches += count
		report.Requests = append(report.Requests, division.Request{Charges: charges, Count: count})
	}
	return report
}

// Reclaims reads the spec's reclaims of a lease, or those in its status, which have deadlines.
func Reclaims(list []autonodev1alpha1.CapacityReclaim) division.Reclaims {
	reclaims := division.Reclaims{}
	for i := range list {
		r := &list[i]
		reclaims[r.Pool] = append(reclaims[r.Pool], division.Reclaim{
			Limit: max(0, min(r.Limit, autonodev1alpha1.MaxAmount)), For: r.For, By: r.By.At(),
		})
	}
	return reclaims
}

// CapacityReclaims is the reverse of Reclaims.
func CapacityReclaims(reclaims division.Reclaims) (list []autonodev1alpha1.CapacityReclaim) {
	for _, pool := range slices.Sorted(maps.Keys(reclaims)) {
		for _, r := range reclaims[pool] {
			entry := autonodev1alpha1.CapacityReclaim{Pool: pool, Limit: r.Limit, For: r.For}
			if !r.By.IsZero() {
				entry.By = new(scalar.NewTime(r.By))
			}
			list = append(list, entry)
		}
	}
	return list[:min(len(list), maxReclaims)]
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
		r := retained[pool]
		list = append(list, autonodev1alpha1.RetainedAmount{Pool: pool, Amount: r.Amount, Until: scalar.NewTime(r.Until)})
	}
	return list
}
