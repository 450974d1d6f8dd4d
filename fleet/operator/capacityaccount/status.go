// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/fleet/conversion"
	"github.com/autonode-io/autonode/fleet/division"
	"github.com/autonode-io/autonode/internal/message"
	"github.com/autonode-io/autonode/operator/apply"
)

// maxNamed is the number of entries or clusters that a condition names.
const maxNamed = 3

// own are the fields of status that the operator writes.
var statusFields = apply.StatusFields{
	Names:      []string{"observedGeneration", "clusterCount", "machineCount", "fullestPool", "pools", "clusters", "unusable"},
	Conditions: []string{autonodev1alpha1.Ready, autonodev1alpha1.EntriesUsable, autonodev1alpha1.MembersGranted},
}

// summarize sets the status by the decision.
func (r *reconciliation) summarize() {
	state := &r.found.Status
	state.ObservedGeneration = r.found.Generation
	state.Unusable = r.account.unusable[:min(len(r.account.unusable), maxUnusable)]
	state.Clusters = r.clusterGrants()
	leased := 0
	for _, key := range r.keys {
		if c := r.clusters[key]; c.member != nil && c.lease != nil {
			leased++
		}
	}
	state.ClusterCount, state.MachineCount = ptr.To(int32(leased)), ptr.To(int32(r.machines))
	r.summarizePools()
	r.over = append(r.over, r.overLimits()...)

	usable, granted := r.entriesUsable(), r.membersGranted()
	ready := metav1.Condition{
		Type: autonodev1alpha1.Ready, Status: metav1.ConditionTrue, Reason: autonodev1alpha1.AsExpectedReason, Message: granted.Message,
	}
	for _, condition := range []metav1.Condition{granted, usable} {
		if condition.Reason != autonodev1alpha1.AsExpectedReason {
			ready.Status, ready.Reason, ready.Message = condition.Status, condition.Reason, condition.Message
			break
		}
	}
	for _, condition := range []metav1.Condition{usable, granted, ready} {
		condition.ObservedGeneration = r.found.Generation
		meta.SetStatusCondition(&state.Conditions, condition)
	}
}

// clusterGrants returns the record as it is stored.
func (r *reconciliation) clusterGrants() []autonodev1alpha1.CapacityGrant {
	var list []autonodev1alpha1.CapacityGrant
	for _, key := range r.keys {
		grant, ok := r.decision.Record[key]
		if !ok {
			continue
		}
		c := r.clusters[key]
		if c.member == nil && c.released == nil && c.lease != nil && acknowledged(c, grant) && !grant.Pending() {
			// Its Karpenter has returned all that its machines don't take. The lease is released as soon as that is recorded.
			c.released = ptr.To(scalar.NewTime(r.now))
		}
		namespace, name, _ := strings.Cut(key, "/")
		entry := autonodev1alpha1.CapacityGrant{
			Namespace: namespace, Name: name, ControlPlaneNamespace: c.namespace, Cluster: c.home.cluster, LeaseUID: grant.Lease,
			Sequence: grant.Sequence, Released: c.released, Retained: conversion.RecordedRetained(r.decision.Retained[key]),
		}
		if c.released != nil {
			entry.LeaseUID = "" // if it comes back, it has to acknowledge again
		}
		pools := map[string]bool{}
		for _, amounts := range []division.Amounts{grant.Limit, grant.Granted} {
			for pool := range amounts {
				pools[pool] = true
			}
		}
		for _, pool := range slices.Sorted(maps.Keys(pools)) {
			amount := autonodev1alpha1.GrantedAmount{Pool: pool, Granted: grant.Granted[pool]}
			if asked := grant.Limit[pool]; asked != amount.Granted {
				amount.Limit = &asked
			}
			entry.Amounts = append(entry.Amounts, amount)
		}
		list = append(list, entry)
	}
	return list
}

func (r *reconciliation) summarizePools() {
	granted, used := division.Amounts{}, division.Amounts{}
	for _, key := range r.keys {
		for pool, amount := range r.decision.Record[key].Granted {
			granted[pool] += amount
		}
		for pool, amount := range r.clusters[key].used {
			used[pool] += amount
		}
	}
	state := &r.found.Status
	state.Pools, state.FullestPool = nil, ""
	fullest := -1.0
	for i := range r.account.pools {
		pool := &r.account.pools[i]
		limit := r.account.limits[pool.Name]
		entry := autonodev1alpha1.CapacityPoolStatus{
			Name: pool.Name, Limit: format(pool.Resource, limit), Granted: format(pool.Resource, granted[pool.Name]),
			Used: format(pool.Resource, used[pool.Name]),
		}
		if waiting := r.decision.Waiting[pool.Name]; waiting > 0 {
			entry.Waiting = format(pool.Resource, waiting)
		}
		r.summarizeReclaim(pool, &entry)
		state.Pools = append(state.Pools, entry)
		if used[pool.Name] > limit {
			r.over = append(r.over, fmt.Sprintf("%s %s/%s", pool.Name, entry.Used, entry.Limit))
		}
		if full := float64(used[pool.Name]) / float64(max(limit, 1)); full > fullest {
			fullest, state.FullestPool = full, fmt.Sprintf("%s %s/%s", pool.Name, entry.Used, entry.Limit)
		}
	}
}

// overLimits are the limits of single clusters that their machines exceed.
func (r *reconciliation) overLimits() (over []string) {
	for _, key := range r.keys {
		c := r.clusters[key]
		if c.member == nil {
			continue
		}
		for i := range c.member.entry.limits {
			pool := &c.member.entry.limits[i]
			if limit, used := c.member.entry.maximum[pool.Name], c.used[pool.Name]; used > limit {
				over = append(over, fmt.Sprintf("%s of %s %s/%s", pool.Name, key, format(pool.Resource, used), format(pool.Resource, limit)))
			}
		}
	}
	return over
}

// overGuaranteed are the pools of which more is guaranteed than their limit.
func (r *reconciliation) overGuaranteed() (over []string) {
	sum := division.Amounts{}
	for _, key := range r.keys {
		if c := r.clusters[key]; c.member != nil {
			for pool, amount := range c.member.entry.guaranteed {
				sum[pool] += amount
			}
		}
	}
	for i := range r.account.pools {
		pool := &r.account.pools[i]
		if limit := r.account.limits[pool.Name]; sum[pool.Name] > limit {
			over = append(over, fmt.Sprintf("%s %s/%s", pool.Name, format(pool.Resource, sum[pool.Name]), format(pool.Resource, limit)))
		}
	}
	return over
}

func (r *reconciliation) entriesUsable() metav1.Condition {
	condition := metav1.Condition{
		Type: autonodev1alpha1.EntriesUsable, Status: metav1.ConditionTrue, Reason: autonodev1alpha1.AsExpectedReason,
	}
	spec := &r.found.Spec
	condition.Message = english.OxfordWordSeries([]string{
		english.Plural(len(spec.Reservations), "reservation", "reservations"), english.Plural(len(spec.Quotas), "quota", "quotas"),
		english.Plural(len(spec.Commitments), "commitment", "commitments"),
	}, "and")
	if len(r.account.unusable) == 0 {
		return condition
	}
	var texts []string
	for _, entry := range r.account.unusable {
		texts = append(texts, "spec."+entry.Field+": "+entry.Message)
	}
	condition.Reason = autonodev1alpha1.SomeUnusableReason
	condition.Message = message.List(texts, maxNamed, "; ") + "; the other entries are in use"
	if r.account.unreadLimits || r.keptLimits {
		condition.Status, condition.Reason = metav1.ConditionFalse, autonodev1alpha1.LimitsUnusableReason
	}
	return condition
}

func (r *reconciliation) membersGranted() metav1.Condition {
	var silentOnes, excessive, leaving []string
	members := 0
	for _, key := range r.keys {
		c := r.clusters[key]
		grant := r.decision.Record[key]
		if c.member == nil {
			leaving = append(leaving, key)
		} else {
			members++
		}
		unacknowledged := c.released == nil && c.lease != nil && c.lease.Spec.Sequence > 0 && !acknowledged(c, grant)
		if r.lasts(observation{"unacknowledged", key}, unacknowledged, silent) {
			silentOnes = append(silentOnes, key)
		}
		if pool, exceeds := exceeded(c, grant); r.lasts(observation{"excessive", key}, exceeds, silent) {
			excessive = append(excessive, key+" "+pool)
		}
	}
	others := slices.Sorted(maps.Keys(r.claims.others))
	for i, key := range others {
		others[i] = key + " (account " + r.claims.others[key] + ")"
	}
	for _, key := range r.keys {
		if c := r.clusters[key]; c.member != nil && c.other != nil && c.other.Spec.Account != nil {
			if account, exists := r.claims.accounts[c.other.Spec.Account.UID]; exists {
				others = append(others, key+" (account "+account+" hasn't released its lease yet)")
			}
		}
	}
	guaranteed, overdue := r.overGuaranteed(), r.overdue()
	condition := metav1.Condition{Type: autonodev1alpha1.MembersGranted, Status: metav1.ConditionFalse}
	switch {
	case !r.found.DeletionTimestamp.IsZero():
		condition.Reason = autonodev1alpha1.AccountDeletedReason
		condition.Message = fmt.Sprintf("the account is being deleted; leases of %s stay as they are; empty spec.members to release them",
			english.Plural(len(r.keys), "cluster", "clusters"))
	case r.claims.excess > 0:
		condition.Reason = autonodev1alpha1.TooManyMembersReason
		condition.Message = fmt.Sprintf("%s without a lease: an account serves %d clusters; divide them among several accounts",
			english.Plural(r.claims.excess, "cluster is", "clusters are"), maxClusters)
	case len(others) > 0:
		condition.Reason = autonodev1alpha1.ClaimedByOthersReason
		condition.Message = "clusters of another account: " + named(others) + "; remove them from the members of one account"
	case len(silentOnes) > 0:
		condition.Reason = autonodev1alpha1.NotAcknowledgedReason
		condition.Message = fmt.Sprintf("Karpenter hasn't acknowledged its lease for %s: %s; "+
			"the quantities to be returned stay granted; check that it runs and supports leases", silent, named(silentOnes))
	case len(excessive) > 0:
		condition.Reason = autonodev1alpha1.ReportExceedsGrantReason
		condition.Message = "Karpenter reports more than it was granted and its Machines take: " + named(excessive) +
			"; that doesn't count; look for who else writes the status of its CapacityLease"
	case len(overdue) > 0:
		condition.Reason = autonodev1alpha1.ReclaimOverdueReason
		condition.Message = "not returned by the deadline to clusters that reclaim it: " + named(overdue) +
			"; what is used stays granted; check that Karpenter runs"
	case members == 0:
		condition.Status, condition.Reason = metav1.ConditionTrue, autonodev1alpha1.NoMembersReason
		condition.Message = "no hosted cluster with AutoNode on platform ClusterAPI matches spec.members"
	case len(r.over) > 0:
		condition.Status, condition.Reason = metav1.ConditionTrue, autonodev1alpha1.OverLimitReason
		condition.Message = "machines take more than the limit: " + named(r.over) +
			"; none is removed, and no cluster is granted more of these pools"
	case len(guaranteed) > 0:
		condition.Status, condition.Reason = metav1.ConditionTrue, autonodev1alpha1.OverGuaranteedReason
		condition.Message = "more is guaranteed than the limit: " + named(guaranteed) + "; members with a higher priority have theirs first"
	case len(leaving) > 0:
		condition.Status, condition.Reason = metav1.ConditionTrue, autonodev1alpha1.MembersLeavingReason
		condition.Message = "machines of clusters that have left count until they are gone: " + named(leaving)
	default:
		condition.Status, condition.Reason = metav1.ConditionTrue, autonodev1alpha1.AsExpectedReason
		condition.Message = english.Plural(members, "cluster shares", "clusters share") + " " +
			english.Plural(len(r.account.pools), "pool", "pools")
	}
	return condition
}

// exceeded returns the first pool of which a cluster's report has more than it was granted, and than its Machines may take.
func exceeded(c *cluster, grant division.Grant) (pool string, exceeds bool) {
	if c.lease == nil || c.asleep {
		return "", false
	}
	reported := conversion.BoundedReport(c.lease).Reserved
	for _, pool := range slices.Sorted(maps.Keys(reported)) {
		if reported[pool] > max(grant.Granted[pool], c.used[pool]) {
			return pool, true
		}
	}
	return "", false
}

// named names the first of a list.
func named(list []string) string { return message.List(list, maxNamed, ", ") }
