// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
)

const (
	// grantTimeout is how long a launch waits for a larger grant before Karpenter deletes the NodeClaim and plans again.
	grantTimeout = 2 * time.Second
	// abandonTimeout is how long a launch that has failed waits for the API server's answer whether it has a Machine.
	abandonTimeout = 2 * time.Second
	// maxQuotas is how many exhausted quotas a message names.
	maxQuotas = 3
)

var (
	// errStale is returned if a snapshot offers a template that has reached its maximum, and there is a newer one.
	errStale = errors.New("the snapshot of the instance types is stale")
	// errUngranted is returned once the operator hasn't granted more within capacity.GrantWait. Nothing more is expected of the pools for a
	// while.
	errUngranted = errors.New("the operator hasn't granted more")
)

// reserve reserves what the cheapest possible launch of a NodeClaim needs: one of the machines that its template may have, one of the
// infrastructure's reservation, and its part of the cluster's CapacityLease. Only then may the Machine be created, and the launch's done
// is to be called afterwards. It chooses again if concurrent launches use up a template's maximum, since another template may make the
// same offering, or if the operator doesn't grant more of a pool. It waits once for a larger grant.
func (c *CloudProvider) reserve(
	ctx context.Context, nodeClaim *karpv1.NodeClaim, nodeClass *v1alpha1.ClusterAPINodeClass,
) (*launch, error) {
	if err := c.Capacity.Open(ctx); err != nil {
		return nil, because(CapacityLeaseUnreadReason, err)
	}
	ungranted := ""
	for waited := false; ; {
		ranked, err := c.choose(ctx, nodeClaim, nodeClass)
		if err != nil {
			return nil, err
		}
		err = inventory.ErrFull
		for launch := range ranked.launches {
			if launch.done, err = c.reserveChoice(nodeClaim, &launch.choice); err == nil {
				launch.onDemand = ranked.snapshot.OnDemandPrice(launch.choice.Key.InstanceType, launch.choice.Key.Zone)
				return launch.label(nodeClaim), nil
			}
			if now, unread := c.InstanceTypes.Cached(nodeClass.Name); unread == nil && now != ranked.snapshot && errors.Is(err, inventory.ErrFull) {
				err = errStale
			}
			if !errors.Is(err, inventory.ErrFull) {
				break
			}
		}
		switch {
		case errors.Is(err, inventory.ErrFull): // none is available
			return nil, karpcloudprovider.NewInsufficientCapacityError(fmt.Errorf(
				"none of the %d instance types of node class %s has an available offering that meets the requirements of NodeClaim %s%s",
				len(ranked.instanceTypes), nodeClass.Name, nodeClaim.Name, cmp.Or(ungranted, c.shortage())))
		case errors.Is(err, errUngranted):
			ungranted = "; " + err.Error()
		case reasonOf(err) == WaitingForCapacityReason && !waited:
			waited = true
			c.Capacity.Await(ctx, grantTimeout)
		case !errors.Is(err, errStale):
			return nil, err
		}
	}
}

// reserveChoice reserves what a NodeClaim's machine of a choice needs, and records which vacancy it fills. Nothing that is held for another
// NodePool is available. The error wraps inventory.ErrFull or errUngranted, or is a failure.
func (c *CloudProvider) reserveChoice(nodeClaim *karpv1.NodeClaim, choice *instancetype.Choice) (done func(), err error) {
	needed := capacityprovider.MachineOf(choice.Key, choice.Template)
	nodePool, source := nodePoolOf(nodeClaim), choice.Template.Source.Annotation()
	vacancies := c.Vacancies.Holders(nodePool)
	if err := c.requestGrant(nodeClaim.Name, needed, vacancies); err != nil {
		return nil, err
	}
	if choice.Key.Reservation != "" {
		err = c.Inventory.AcquireReserved(nodeClaim.UID, choice.Key.Reservation,
			choice.ReservationCount-c.Vacancies.OthersIn(nodePool, choice.Key.Reservation))
	}
	if limit, limited := choice.Template.Maximum(); limited && err == nil {
		err = c.Inventory.Acquire(nodeClaim.UID, source, limit-c.Vacancies.OthersOf(nodePool, source))
	}
	if errors.Is(err, inventory.ErrNotCounted) {
		err = because(MachinesUncountedReason, err)
	}
	if err != nil {
		return nil, err
	}
	done, vacancy := c.Capacity.Reserve(nodeClaim.Name, needed, vacancies...)
	if done == nil {
		return nil, inventory.ErrFull // another launch has just reserved it
	}
	choice.Replaces = c.Vacancies.Fill(nodeClaim, vacancy, source, choice.Key.Reservation)
	return done, nil
}

// requestGrant requests a larger grant from the operator for a machine that the lease has no room for, and returns what follows for the
// launch.
func (c *CloudProvider) requestGrant(nodeClaim string, needed capacity.Machine, vacancies []string) error {
	switch grant, pools := c.Capacity.Request(nodeClaim, needed, vacancies...); grant {
	case capacityprovider.Granted:
		return nil
	case capacityprovider.GrantAwaited:
		return because(WaitingForCapacityReason, fmt.Errorf(
			"the hosted cluster's CapacityLease has too little left of %s for instance type %s; waiting for the operator to grant more",
			pools, needed.InstanceType))
	case capacityprovider.GrantRefused:
		return fmt.Errorf("%w of %s within %s", errUngranted, pools, capacityprovider.GrantWait)
	}
	return inventory.ErrFull
}

// shortage names the pools of which the lease leaves nothing, and exhausted quotas of the infrastructure, to append to a message; empty if
// there are none.
func (c *CloudProvider) shortage() (text string) {
	if pools := c.Capacity.Exhausted(); pools != "" {
		text = "; the hosted cluster's CapacityLease leaves nothing of " + pools
	}
	quotas := c.InstanceTypes.Unavailable.Quotas()
	for i := range quotas[:min(len(quotas), maxQuotas)] {
		text += "; " + quotas[i].Description()
	}
	return text
}

// abandon releases what a launch has reserved that fails for good. If it was waiting for a larger grant, its request stays for the next
// launch of the same pods.
func (c *CloudProvider) abandon(ctx context.Context, nodeClaim *karpv1.NodeClaim, err error) {
	ctx, cancel := context.WithTimeout(ctx, abandonTimeout)
	defer cancel()
	c.Inventory.Abandon(ctx, nodeClaim)
	c.Vacancies.Release(nodeClaim.Name)
	c.Capacity.Abandon(nodeClaim.Name, reasonOf(err) == WaitingForCapacityReason)
}

// release releases what was reserved for a NodeClaim that has no Machine any more.
func (c *CloudProvider) release(nodeClaim *karpv1.NodeClaim) {
	c.Inventory.Release(nodeClaim.UID)
	c.Vacancies.Release(nodeClaim.Name)
	c.Capacity.Abandon(nodeClaim.Name, false)
}
