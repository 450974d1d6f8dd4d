// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/fleet/division"
	"github.com/autonode-io/autonode/operator/apply"
)

// record writes the status, and reports whether it did. Nothing may be granted that isn't recorded.
func (r *reconciliation) record(ctx context.Context) (bool, error) {
	r.summarize()
	after := &r.found.Status
	if equality.Semantic.DeepEqual(*r.before, *after) {
		return false, nil
	}
	still := r.before.DeepCopy()
	still.Pools, still.MachineCount, still.FullestPool = after.Pools, after.MachineCount, after.FullestPool
	if wait := r.reported.Add(figures).Sub(r.now); wait > 0 && equality.Semantic.DeepEqual(*still, *after) {
		r.requeue(wait)
		return false, nil
	}
	if err := apply.Status(ctx, r.Management, r.found, statusFields); err != nil {
		return false, err
	}
	r.reported = r.now
	return true, nil
}

// recordEvents writes an event for each condition that has another reason now, and for reclaims that begin or end.
func (r *reconciliation) recordEvents() {
	r.recordReclaims()
	for _, kind := range []string{autonodev1alpha1.EntriesUsable, autonodev1alpha1.MembersGranted} {
		now, before := meta.FindStatusCondition(r.found.Status.Conditions, kind), meta.FindStatusCondition(r.before.Conditions, kind)
		if now == nil || before != nil && before.Reason == now.Reason || before == nil && now.Reason == autonodev1alpha1.AsExpectedReason {
			continue
		}
		level := corev1.EventTypeNormal
		if now.Status != metav1.ConditionTrue || now.Reason == autonodev1alpha1.SomeUnusableReason {
			level = corev1.EventTypeWarning
		}
		r.Recorder.Eventf(r.found, nil, level, now.Reason, "DivideCapacity", "%s", now.Message)
	}
}

// grantOf reads an entry of the record.
func grantOf(recorded *autonodev1alpha1.CapacityGrant) division.Grant {
	grant := division.Grant{Lease: recorded.LeaseUID, Sequence: recorded.Sequence, Limit: division.Amounts{}, Granted: division.Amounts{}}
	for _, amount := range recorded.Amounts {
		if asked := ptr.Deref(amount.Limit, amount.Granted); asked != 0 {
			grant.Limit[amount.Pool] = asked
		}
		if amount.Granted != 0 {
			grant.Granted[amount.Pool] = amount.Granted
		}
	}
	return grant
}

// least returns the lesser of the amounts of each pool.
func least(a, b division.Amounts) division.Amounts {
	both := division.Amounts{}
	for pool, amount := range a {
		if amount = min(amount, b[pool]); amount > 0 {
			both[pool] = amount
		}
	}
	return both
}
