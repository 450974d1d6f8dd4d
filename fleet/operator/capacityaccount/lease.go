// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/fleet/conversion"
	"github.com/autonode-io/autonode/fleet/division"
	"github.com/autonode-io/autonode/operator/apply"
)

// grant writes the record into the leases.
func (r *reconciliation) grant(ctx context.Context) error {
	committed := r.committed()
	closed := r.share()
	var errs []error
	for _, key := range r.keys {
		c := r.clusters[key]
		var err error
		switch {
		case c.member == nil && c.released != nil && c.lease != nil:
			err = r.release(ctx, c.lease)
		case c.member == nil && c.lease == nil:
		case c.lease != nil:
			err = r.write(ctx, key, c, committed, unavailableFor(key, closed))
		case c.other != nil:
			err = r.adopt(ctx, key, c.other)
		default:
			err = r.create(ctx, c.member.component)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	// One conflict shows that something changed, independent of the others.
	for _, err := range errs {
		if result, other := retry(err); other == nil {
			if result.RequeueAfter > 0 {
				r.requeue(result.RequeueAfter)
			}
			continue
		}
		return errors.Join(errs...)
	}
	return nil
}

// create makes a lease that grants nothing yet.
func (r *reconciliation) create(ctx context.Context, component *v1beta1.ControlPlaneComponent) error {
	lease := &autonodev1alpha1.CapacityLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: component.Namespace, Name: component.Name, Labels: map[string]string{
			apply.LabelManagedBy:                apply.FieldOwner,
			v1beta1.HostedClusterLabel:          component.Labels[v1beta1.HostedClusterLabel],
			v1beta1.HostedClusterNamespaceLabel: component.Labels[v1beta1.HostedClusterNamespaceLabel],
		}},
		Spec: autonodev1alpha1.CapacityLeaseSpec{Account: r.reference()},
	}
	for _, label := range []string{v1beta1.ControlPlaneNamespaceModeLabel, v1beta1.ClusterNameLabel} {
		if value, ok := component.Labels[label]; ok {
			lease.Labels[label] = value
		}
	}
	if err := controllerutil.SetControllerReference(component, lease, r.Management.Scheme()); err != nil {
		return fmt.Errorf("setting the owner of CapacityLease %s: %w", klog.KObj(lease), err)
	}
	if err := r.Management.Create(ctx, lease, client.FieldOwner(apply.FieldOwner)); err != nil {
		return fmt.Errorf("creating CapacityLease %s: %w", klog.KObj(lease), err)
	}
	return nil
}

func (r *reconciliation) reference() *autonodev1alpha1.CapacityAccountReference {
	return &autonodev1alpha1.CapacityAccountReference{Name: r.found.Name, UID: string(r.found.UID)}
}

// adopt takes over a lease that no account has any more. Only then it is read: an operator that still served the former account, and had
// a grant to write, can't any more.
func (r *reconciliation) adopt(ctx context.Context, key string, lease *autonodev1alpha1.CapacityLease) error {
	changed := lease.DeepCopy()
	if account := lease.Spec.Account; account == nil {
		changed.Spec.Pools = nil
	} else if _, exists := r.claims.accounts[account.UID]; exists {
		return nil // it is released by and by
	}
	changed.Spec.Account = r.reference()
	log.FromContext(ctx).Info("Adopted a CapacityLease", "hostedCluster", key)
	return r.patch(ctx, changed, lease)
}

// release lets a cluster go that doesn't belong to the account any more.
func (r *reconciliation) release(ctx context.Context, lease *autonodev1alpha1.CapacityLease) error {
	changed := lease.DeepCopy()
	changed.Spec = autonodev1alpha1.CapacityLeaseSpec{Sequence: lease.Spec.Sequence}
	return r.patch(ctx, changed, lease)
}

func (r *reconciliation) patch(ctx context.Context, changed, lease *autonodev1alpha1.CapacityLease) error {
	if err := r.patchLocked(ctx, changed, lease); err != nil {
		return fmt.Errorf("writing CapacityLease %s: %w", klog.KObj(lease), err)
	}
	return nil
}

// write writes a cluster's record into its lease, if that is news. An operator with an older record writes nothing.
func (r *reconciliation) write(
	ctx context.Context, key string, c *cluster, committed *commitments, unavailable []autonodev1alpha1.UnavailableOffering,
) error {
	grant, ok := r.decision.Record[key]
	lag := ok && grant.Lag(conversion.Lease(c.lease))
	if !lag && (!ok || grant.Lease != string(c.lease.UID) || grant.Sequence != c.lease.Spec.Sequence) {
		return nil
	}
	changed := c.lease.DeepCopy()
	changed.Spec = autonodev1alpha1.CapacityLeaseSpec{
		Account: r.reference(), Sequence: grant.Sequence, Pools: r.leased(c, grant, key, lag), Unavailable: unavailable,
		Reclaim: conversion.CapacityReclaims(r.decision.Reclaims[key]),
	}
	if committed != nil {
		changed.Spec.Commitments, changed.Spec.Machines = committed.leasedTo(key), committed.machines
		changed.Spec.Counted = r.counted(key, committed)
	}
	if len(changed.Spec.Reclaim) > 0 {
		changed.Spec.ReclaimGracePeriod = &scalar.Duration{Duration: r.account.gracePeriod}
	}
	if equality.Semantic.DeepEqual(changed.Spec, c.lease.Spec) {
		return nil
	}
	interval := max(hints, time.Duration(len(r.keys))*hintsOfEach)
	wait := r.hinted[key].Add(interval).Sub(r.now)
	if wait > 0 && equality.Semantic.DeepEqual(withoutHints(changed.Spec), withoutHints(c.lease.Spec)) {
		r.requeue(wait)
		return nil
	}
	r.hinted[key] = r.now
	return r.patch(ctx, changed, c.lease)
}

// leased returns the pools of a lease. Amounts granted with a sequence stay as they are: the record only falls until the next one.
func (r *reconciliation) leased(c *cluster, grant division.Grant, key string, lag bool) []autonodev1alpha1.LeasedPool {
	written := map[string]int64{}
	for i := range c.lease.Spec.Pools {
		written[c.lease.Spec.Pools[i].Name] = c.lease.Spec.Pools[i].Granted
	}
	var pools []autonodev1alpha1.LeasedPool
	for _, pool := range c.pools {
		pool.Limit, pool.Granted = grant.Limit[pool.Name], grant.Granted[pool.Name]
		pool.Available = max(r.decision.Available[key][pool.Name], pool.Limit)
		pool.Attainable = min(r.decision.Attainable[key][pool.Name], autonodev1alpha1.MaxAmount)
		// Each machine takes one of its reservation, so it needs no more than is free but by reclaim.
		if c.member != nil && pool.Reservation != "" && !r.mayPreempt(c) {
			pool.Attainable = min(pool.Attainable, c.member.entry.guaranteed[pool.Name])
		}
		if !lag {
			pool.Granted = max(written[pool.Name], pool.Limit)
		}
		pools = append(pools, pool)
	}
	return pools
}

// sameRules reports whether the same machines take the same from the same pools.
func sameRules(a, b []autonodev1alpha1.LeasedPool) bool {
	return slices.EqualFunc(a, b, func(x, y autonodev1alpha1.LeasedPool) bool {
		x.Limit, x.Granted, x.Available, x.Attainable = y.Limit, y.Granted, y.Available, y.Attainable
		return equality.Semantic.DeepEqual(x, y)
	})
}

// withoutHints is a lease without the fields that Karpenter may learn later.
func withoutHints(spec autonodev1alpha1.CapacityLeaseSpec) autonodev1alpha1.CapacityLeaseSpec {
	spec = *spec.DeepCopy()
	spec.Commitments, spec.Machines, spec.Counted, spec.Unavailable = nil, nil, nil, nil
	for i := range spec.Pools {
		spec.Pools[i].Available, spec.Pools[i].Attainable = 0, 0
	}
	return spec
}
