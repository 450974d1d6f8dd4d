// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/reservation"
)

// launch is Create's choice for a NodeClaim.
type launch struct {
	instanceType *karpcloudprovider.InstanceType
	choice       instancetype.Choice
	// offering after NodeOverlays.
	offering *karpcloudprovider.Offering
	// onDemand is the list price of the same machine on demand; zero if it isn't known.
	onDemand float64
}

// price is the machine's, without commitments: those are the account's matter, and change.
func (l launch) price() float64 {
	if l.offering.Price == l.choice.Offering.Price {
		return l.choice.ListPrice
	}
	return l.offering.Price // a NodeOverlay's
}

// choose reserves the cheapest available offering that meets the NodeClaim's requirements, and its template. It retries with a newer
// snapshot if concurrent launches use up a template's maximum, since another template may make the same offering, or if the operator
// doesn't grant more of a pool. It waits once for a larger grant of the CapacityLease.
func (c *CloudProvider) choose(ctx context.Context, nodeClaim *karpv1.NodeClaim, nodeClass *v1alpha1.ClusterAPINodeClass) (launch, error) {
	var ungranted *reservation.UngrantedError
	for waited := false; ; {
		snapshot, err := c.InstanceTypes.List(ctx, nodeClass)
		if err != nil {
			return launch{}, because(NodeClassReadinessUnknownReason, err)
		}
		instanceTypes, err := c.launchable(ctx, nodeClaim, snapshot)
		if err != nil {
			return launch{}, err
		}
		chosen, err := c.reserveCheapest(nodeClaim, nodeClass, snapshot, instanceTypes)
		var waiting *reservation.WaitingError
		switch {
		case err == nil:
			return chosen, nil
		case errors.Is(err, errStale), errors.As(err, &ungranted):
		case errors.As(err, &waiting) && !waited:
			waited = true
			c.Reservations.Await(ctx)
		case waiting != nil:
			return launch{}, because(WaitingForCapacityReason, err)
		case errors.Is(err, inventory.ErrNotCounted):
			return launch{}, because(MachinesUncountedReason, err)
		default: // none is available
			reason := c.Reservations.Shortage() + c.exhaustedQuotas()
			if ungranted != nil {
				reason = "; " + ungranted.Error()
			}
			return launch{}, karpcloudprovider.NewInsufficientCapacityError(fmt.Errorf(
				"none of the %d instance types of node class %s has an available offering that meets the requirements of NodeClaim %s%s",
				len(instanceTypes), nodeClass.Name, nodeClaim.Name, reason))
		}
	}
}

// launchable returns the instance types that a NodeClaim's NodePool gets, as GetInstanceTypes does, after NodeOverlays.
func (c *CloudProvider) launchable(ctx context.Context, nodeClaim *karpv1.NodeClaim, snapshot *instancetype.Snapshot) ([]*karpcloudprovider.InstanceType, error) {
	nodePool := &karpv1.NodePool{}
	err := c.Guest.Get(ctx, types.NamespacedName{Name: nodePoolOf(nodeClaim)}, nodePool)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading the NodePool of NodeClaim %s: %w", nodeClaim.Name, err)
	}
	instanceTypes, _ := snapshot.Meeting(snapshot.Tolerating(nodeClaim.Spec.Taints, nodeClaim.Spec.StartupTaints), nodePool.Spec.Template.Spec.Requirements)
	if instanceTypes, err = c.overlaid(ctx, nodePoolOf(nodeClaim), instanceTypes); err != nil {
		return nil, because(NodeClassReadinessUnknownReason, err)
	}
	return instanceTypes, nil
}

// exhaustedQuotas describes quotas of the infrastructure that are exhausted, to append to a message; empty if there are none.
func (c *CloudProvider) exhaustedQuotas() (text string) {
	quotas := c.InstanceTypes.Unavailable.Quotas()
	for i := range quotas[:min(len(quotas), maxQuotas)] {
		text += "; " + quotas[i].Description()
	}
	return text
}

// maxQuotas is how many exhausted quotas a message names.
const maxQuotas = 3

// overlaid applies the NodeOverlays of a NodePool. A NodeClaim of no NodePool has none: Karpenter core evaluates them for each NodePool.
func (c *CloudProvider) overlaid(ctx context.Context, nodePool string, instanceTypes []*karpcloudprovider.InstanceType) ([]*karpcloudprovider.InstanceType, error) {
	if c.Overlays == nil || nodePool == "" || !options.FromContext(ctx).FeatureGates.NodeOverlay {
		return instanceTypes, nil
	}
	instanceTypes, err := c.Overlays.ApplyAll(nodePool, instanceTypes)
	if err != nil {
		return nil, fmt.Errorf("applying NodeOverlays: %w", err)
	}
	return instanceTypes, nil
}

// errStale is returned if a snapshot offers a template that has reached its maximum, and there is a newer one.
var errStale = errors.New("the snapshot of the instance types is stale")

// reserveCheapest reserves the cheapest offering of a snapshot that isn't full. The error wraps errStale, or reservation.ErrFull if all are,
// or is any other of Reserve.
func (c *CloudProvider) reserveCheapest(
	nodeClaim *karpv1.NodeClaim, nodeClass *v1alpha1.ClusterAPINodeClass, snapshot *instancetype.Snapshot, instanceTypes []*karpcloudprovider.InstanceType,
) (launch, error) {
	for chosen := range c.launches(nodeClaim, snapshot, instanceTypes) {
		switch err := c.Reservations.Reserve(nodeClaim, &chosen.choice); {
		case err == nil:
			chosen.onDemand = snapshot.OnDemandPrice(chosen.choice.Key.InstanceType, chosen.choice.Key.Zone)
			return chosen, nil
		case !errors.Is(err, reservation.ErrFull):
			return launch{}, err
		}
		if now, err := c.InstanceTypes.Cached(nodeClass.Name); err == nil && now != snapshot {
			return launch{}, errStale
		}
	}
	return launch{}, reservation.ErrFull
}

// launches yields the possible launches for a NodeClaim, cheapest first.
func (c *CloudProvider) launches(nodeClaim *karpv1.NodeClaim, snapshot *instancetype.Snapshot, instanceTypes []*karpcloudprovider.InstanceType) iter.Seq[launch] {
	requirements := karpscheduling.NewNodeSelectorRequirementsWithMinValues(nodeClaim.Spec.Requirements...)
	return func(yield func(launch) bool) {
		for candidate := range snapshot.Cheapest(instanceTypes, requirements, nodeClaim.Spec.Resources.Requests, string(nodeClaim.UID)) {
			if _, rejected := c.Rejections.Entry(nodePoolOf(nodeClaim), candidate.Key()); rejected {
				continue
			}
			cheapest, ok := snapshot.ResolveKey(candidate.Key())
			if !ok {
				continue
			}
			choice, ok := snapshot.For(cheapest, nodeClaim, requirements)
			if !ok {
				continue
			}
			if choice.Template != cheapest.Template {
				candidate.Offering = choice.Offering
			}
			if !yield(launch{instanceType: candidate.InstanceType, offering: candidate.Offering, choice: choice}) {
				return
			}
		}
	}
}
