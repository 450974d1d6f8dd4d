// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/fleet/conversion"
	"github.com/autonode-io/autonode/fleet/cost"
	"github.com/autonode-io/autonode/fleet/division"
)

// reconciliation is one reconciliation of an account.
type reconciliation struct {
	*Controller
	*memory
	found  *autonodev1alpha1.CapacityAccount
	before *autonodev1alpha1.CapacityAccountStatus
	now    time.Time
	// after is when to reconcile again; zero if a watch does.
	after time.Duration

	account *account
	// keptLimits: a limit can't be read, and the last one is in force.
	keptLimits bool
	consumers  map[string]map[string][]string // of counted objects, by pool and namespace
	claims     *claims
	// clusters of the account and of its record, by key, and keys in order.
	clusters map[string]*cluster
	keys     []string
	machines int64
	// costs are the machines of the clusters of the account, and spending their costs.
	costs    []cost.Machines
	spending *cost.Report
	decision division.Decision
	// over are the pools of which more is used than their limit.
	over []string
}

// cluster is one hosted cluster in a reconciliation.
type cluster struct {
	member *member // nil if it doesn't belong to the account any more
	// recorded is its entry in the record; nil if it joins.
	recorded *autonodev1alpha1.CapacityGrant
	// lease of the account, and another object in its place.
	lease, other *autonodev1alpha1.CapacityLease
	home
	pools    []autonodev1alpha1.LeasedPool
	used     division.Amounts
	released *scalar.Time
	// asleep: it sleeps for long enough that no request of its last Karpenter may still have its effect.
	asleep bool
}

func (r *reconciliation) requeue(after time.Duration) {
	if after = max(after, lag); r.after == 0 || after < r.after {
		r.after = after
	}
}

// begin reads all that a decision needs.
func (c *Controller) begin(ctx context.Context, found *autonodev1alpha1.CapacityAccount) (*reconciliation, error) {
	m := c.memory[found.Name]
	if m == nil || m.uid != found.UID {
		m = &memory{
			uid: found.UID, since: map[observation]time.Time{}, hinted: map[string]time.Time{}, closed: unavailableReports{},
			reclaims: map[string]division.Reclaims{},
			quotas:   map[string]reading[limitReading]{},
			rates:    map[autonodev1alpha1.CapacityRatesSource]reading[map[string]float64]{},
		}
		c.memory[found.Name] = m
	}
	r := &reconciliation{
		Controller: c, memory: m, found: found, before: found.Status.DeepCopy(), now: c.Clock.Now(), clusters: map[string]*cluster{},
		consumers: map[string]map[string][]string{},
	}
	spec, unread := r.readQuotas(ctx)
	rates, unreadRates := r.readRates(ctx)
	r.account = parseSpec(spec, rates, r.now)
	r.account.unusable = slices.Concat(r.account.unusable, unread, unreadRates)
	r.account.limit()
	if !r.account.next.IsZero() {
		r.requeue(r.account.next.Sub(r.now))
	}
	var err error
	if r.claims, err = c.claimed(ctx, found, r.account); err != nil {
		return nil, err
	}
	r.account.unmatched()
	for i := range found.Status.Clusters {
		recorded := &found.Status.Clusters[i]
		if recorded.Released != nil && recorded.Released.Malformed != "" {
			recorded.Released = ptr.To(scalar.NewTime(r.now))
		}
		r.clusters[recorded.Namespace+"/"+recorded.Name] = &cluster{recorded: recorded, home: recordedHome(recorded), released: recorded.Released}
	}
	for key, member := range r.claims.members {
		if r.clusters[key] == nil {
			r.clusters[key] = &cluster{}
		}
		r.clusters[key].member, r.clusters[key].home = member, member.home
	}
	r.keys = slices.Sorted(maps.Keys(r.clusters))
	namespaces := map[string]bool{}
	for _, key := range r.keys {
		namespaces[r.clusters[key].namespace] = true
		if err := r.read(ctx, key, r.clusters[key]); err != nil {
			return nil, err
		}
	}
	r.countConsumers()
	r.unmatched()
	c.counter.follow(found.Name, namespaces)
	return r, nil
}

// read reads a cluster's lease, and counts the charges of its Machines.
func (r *reconciliation) read(ctx context.Context, key string, c *cluster) error {
	lease := &autonodev1alpha1.CapacityLease{}
	switch err := r.Management.Get(ctx, c.leaseKey(), lease); {
	case err == nil && lease.Spec.Account != nil && lease.Spec.Account.UID == string(r.found.UID):
		c.lease = lease
	case err == nil:
		c.other = lease
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("reading CapacityLease %s: %w", c.leaseKey(), err)
	}
	c.pools = r.account.pools
	if c.member != nil {
		c.pools = slices.Concat(c.pools, c.member.entry.limits)
		c.released = nil
	}
	charged := conversion.Rules(c.pools)
	if c.released != nil {
		// It isn't limited any more, and its launches since aren't the account's.
		list := &clusterv1.MachineList{}
		if err := r.Management.List(ctx, list, append(c.machines(), client.UnsafeDisableDeepCopy)...); err != nil {
			return fmt.Errorf("counting the Machines of namespace %s: %w", c.namespace, err)
		}
		c.used = usedBefore(list, c.released.At().Add(division.InFlight), charged)
		return nil
	}
	var machines int64
	c.used, machines = r.counter.count(c.home, charged, func(m capacity.Priced, count int64) {
		r.costs = append(r.costs, cost.Machines{Cluster: key, Priced: m, Count: count})
	})
	r.machines += machines
	return nil
}

// decide decides each cluster's grant, by the rules of package division.
func (r *reconciliation) decide() {
	input := division.Account{
		Limits: r.account.limits, Members: make(map[string]division.Member, len(r.clusters)),
		Record: make(map[string]division.Grant, len(r.clusters)), Retained: map[string]map[string]division.Retained{},
		Preemption: r.found.Spec.Preemption == autonodev1alpha1.PreemptionLowerPriority,
		Now:        r.now.Truncate(time.Second), First: r.now.Unix(), // as the record has times
	}
	for _, key := range r.keys {
		c := r.clusters[key]
		c.asleep = r.lasts(observation{"asleep", key}, c.sleeps(), division.InFlight)
		m := division.Member{Used: c.used, Leaving: c.member == nil}
		if c.recorded != nil {
			grant := grantOf(c.recorded)
			input.Retained[key] = conversion.Retained(c.recorded)
			if c.released != nil && r.now.Sub(c.released.At()) > 2*division.InFlight {
				// Machines that it held when it was released have come by now, or never will.
				grant.Granted = least(grant.Granted, c.used)
			}
			if c.lease != nil && c.lease.Spec.Sequence == grant.Sequence && !sameRules(c.lease.Spec.Pools, c.pools) {
				// As for another object, it has to acknowledge a newer sequence.
				grant.Lease = ""
			}
			input.Record[key] = grant
		}
		if c.lease != nil && c.released == nil {
			lease := conversion.Lease(c.lease)
			lease.Report = conversion.BoundedReport(c.lease)
			if c.asleep { // nothing runs that could acknowledge the lease, use it or request more
				lease.Report = division.Report{Sequence: lease.Sequence}
			}
			m.Lease = &lease
		}
		if c.member != nil {
			m.Priority, m.Guaranteed, m.Maximum = c.member.entry.priority, c.member.entry.guaranteed, c.member.entry.maximum
			m.Idle = r.isIdle(key, c, input.Record[key], &m, input.Retained[key]) || c.asleep
		} else {
			m.Gone = r.isGone(key, c)
		}
		input.Members[key] = m
	}
	r.decision = division.Decide(input)
	if !r.decision.Next.IsZero() {
		r.requeue(r.decision.Next.Sub(r.now))
	}
}

// sleeps reports whether the cluster's Karpenter is to have no replica. One that has just begun launches nothing for division.InFlight.
func (c *cluster) sleeps() bool {
	if c.member == nil || len(c.used) > 0 {
		return false
	}
	available := meta.FindStatusCondition(c.member.component.Status.Conditions, v1beta1.Available)
	return available != nil && available.Reason == v1beta1.AsleepReason
}

// isIdle reports whether a cluster has held more than it needs for long enough.
func (r *reconciliation) isIdle(
	key string, c *cluster, grant division.Grant, m *division.Member, retained map[string]division.Retained,
) bool {
	surplus := false
	for pool, asked := range grant.Limit {
		floor := c.used[pool]
		if retained := retained[pool]; retained.Until.After(r.now) {
			floor = max(floor, retained.Amount)
		}
		surplus = surplus || asked > floor && r.account.limits[pool] != division.Unbounded
	}
	surplus = surplus && m.Lease != nil && len(m.Lease.Report.Requests) == 0 && m.Lease.Report.Sequence == grant.Sequence
	return r.lasts(observation{"surplus", key}, surplus, idle)
}

// lasts reports whether an observation has been true for long enough, and reconciles again when it will have been.
func (r *reconciliation) lasts(o observation, now bool, enough time.Duration) bool {
	if !now {
		delete(r.since, o)
		return false
	}
	if _, ok := r.since[o]; !ok {
		r.since[o] = r.now
	}
	remaining := r.since[o].Add(enough).Sub(r.now)
	if remaining > 0 {
		r.requeue(remaining)
	}
	return remaining <= 0
}

// isGone reports whether neither Machines nor a Karpenter with a lease is left of a cluster that doesn't belong to the account any more. A
// request of a Karpenter that has just ended may still have its effect.
func (r *reconciliation) isGone(key string, c *cluster) bool {
	return r.lasts(observation{"gone", key}, (c.lease == nil || c.released != nil) && len(c.used) == 0, division.InFlight)
}

// acknowledged reports whether a cluster's Karpenter keeps the record.
func acknowledged(c *cluster, grant division.Grant) bool {
	return c.lease != nil && string(c.lease.UID) == grant.Lease &&
		(c.lease.Status.AcknowledgedSequence == grant.Sequence || c.asleep) && c.lease.Spec.Sequence == grant.Sequence
}
