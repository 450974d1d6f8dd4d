// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
)

// unmatched reports the entries that no machine of any member can count for, by the report of each member's Karpenter on its own instance
// types. It reports none that a single member matches, or hasn't looked for.
func (r *reconciliation) unmatched() {
	counts, members := map[string]int{}, 0
	for _, key := range r.keys {
		c := r.clusters[key]
		if c.member == nil {
			continue
		}
		members++
		if c.lease != nil {
			for _, name := range slices.Compact(slices.Sorted(slices.Values(c.lease.Status.Unmatched))) {
				counts[name]++
			}
		}
	}
	// is reports whether all members have said so for long enough: a Karpenter that starts learns its node classes one by one.
	is := func(name string) bool {
		return r.lasts(observation{"unmatched", name}, counts[name] > 0 && counts[name] == members, idle)
	}
	spec := &r.found.Spec
	for i := range spec.Reservations {
		if reservation := &spec.Reservations[i]; is(autonodev1alpha1.ReservationPool(reservation.ID)) {
			r.account.problem(fmt.Sprintf("reservations[%s]", reservation.ID), fmt.Errorf("no InstanceTypeCatalog of a member "+
				"offers instance type %s in zone %s with this reservation", reservation.InstanceType, reservation.Zone))
		}
	}
	for i := range spec.Quotas {
		var resources, without []string // of the quota, and those that no instance type that it matches has
		for _, pool := range r.account.pools {
			if resource, ours := strings.CutPrefix(pool.Name, autonodev1alpha1.QuotaPool(spec.Quotas[i].Name, "")); ours {
				if resources = append(resources, resource); is(pool.Name) {
					without = append(without, resource)
				}
			}
		}
		switch field := fmt.Sprintf("quotas[%s]", spec.Quotas[i].Name); {
		case len(without) == 0:
		case len(without) == len(resources):
			r.account.problem(field+".selector", errors.New("matches no instance type that a member offers, so that it limits nothing"))
		default:
			r.account.problem(field+".limits", fmt.Errorf("no instance type that it matches has %s", strings.Join(without, " or ")))
		}
	}
	for i := range spec.Commitments {
		if name := spec.Commitments[i].Name; is(autonodev1alpha1.CommitmentName(name)) {
			r.account.problem(fmt.Sprintf("commitments[%s]", name),
				errors.New("covers no instance type that a member offers; correct its selector or instance type"))
		}
	}
}
