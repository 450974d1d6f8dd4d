// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// launch is a possible launch of a NodeClaim.
type launch struct {
	instanceType *karpcloudprovider.InstanceType
	choice       instancetype.Choice
	// offering after NodeOverlays.
	offering *karpcloudprovider.Offering
	// onDemand is the list price of the same machine on demand; zero if it isn't known.
	onDemand float64
	// labels of the node, once the launch is chosen.
	labels map[string]string
	// done ends the attempt, once what the launch needs is reserved.
	done func()
}

// ranked are the possible launches of a NodeClaim, of one snapshot.
type ranked struct {
	snapshot      *instancetype.Snapshot
	instanceTypes []*karpcloudprovider.InstanceType
	// launches, cheapest first.
	launches iter.Seq[launch]
}

// choose ranks the available offerings that meet a NodeClaim's requirements, after NodeOverlays and without those that its NodePool doesn't
// get. It reserves nothing.
func (c *CloudProvider) choose(ctx context.Context, nodeClaim *karpv1.NodeClaim, nodeClass *v1alpha1.ClusterAPINodeClass) (ranked, error) {
	snapshot, err := c.InstanceTypes.List(ctx, nodeClass)
	if err != nil {
		return ranked{}, because(NodeClassReadinessUnknownReason, err)
	}
	nodePool := &karpv1.NodePool{}
	if err := c.Guest.Get(ctx, types.NamespacedName{Name: nodePoolOf(nodeClaim)}, nodePool); client.IgnoreNotFound(err) != nil {
		return ranked{}, fmt.Errorf("reading the NodePool of NodeClaim %s: %w", nodeClaim.Name, err)
	}
	instanceTypes, _ := snapshot.Meeting(snapshot.Tolerating(nodeClaim.Spec.Taints, nodeClaim.Spec.StartupTaints),
		nodePool.Spec.Template.Spec.Requirements)
	if instanceTypes, err = c.overlaid(ctx, nodePoolOf(nodeClaim), instanceTypes); err != nil {
		return ranked{}, because(NodeClassReadinessUnknownReason, err)
	}
	return ranked{snapshot, instanceTypes, func(yield func(launch) bool) {
		requirements := karpscheduling.NewNodeSelectorRequirementsWithMinValues(nodeClaim.Spec.Requirements...)
		for candidate := range snapshot.Cheapest(instanceTypes, requirements, nodeClaim.Spec.Resources.Requests, string(nodeClaim.UID)) {
			cheapest, ok := snapshot.ResolveKey(candidate.Key())
			if _, rejected := c.Rejections.Entry(nodePoolOf(nodeClaim), candidate.Key()); rejected || !ok {
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
	}}, nil
}

// overlaid applies the NodeOverlays of a NodePool. A NodeClaim of no NodePool has none: Karpenter core evaluates them for each NodePool.
func (c *CloudProvider) overlaid(
	ctx context.Context, nodePool string, instanceTypes []*karpcloudprovider.InstanceType,
) ([]*karpcloudprovider.InstanceType, error) {
	if c.Overlays == nil || nodePool == "" || !options.FromContext(ctx).FeatureGates.NodeOverlay {
		return instanceTypes, nil
	}
	instanceTypes, err := c.Overlays.ApplyAll(nodePool, instanceTypes)
	if err != nil {
		return nil, fmt.Errorf("applying NodeOverlays: %w", err)
	}
	return instanceTypes, nil
}

// Alternative returns the cheapest available offering for a NodeClaim beside that of its Machine, and the capacity of its machines. It
// returns false if there is none, or nothing can be launched now. It reserves nothing. Offerings of a reservation don't count.
func (c *CloudProvider) Alternative(
	ctx context.Context, nodeClaim *karpv1.NodeClaim, current offering.Key,
) (offering.Key, corev1.ResourceList, bool) {
	nodeClass, err := c.readyNodeClass(ctx, nodeClaim)
	if err != nil {
		return offering.Key{}, nil, false
	}
	ranked, err := c.choose(ctx, nodeClaim, nodeClass)
	if err != nil {
		return offering.Key{}, nil, false
	}
	for alternative := range ranked.launches {
		if key := alternative.choice.Key; key != current && key.Reservation == "" && key.CapacityType != karpv1.CapacityTypeReserved {
			return key, alternative.instanceType.Capacity, true
		}
	}
	return offering.Key{}, nil, false
}

// label returns a launch with its node's labels: the NodeClaim's override the template's, which override those of the offering.
func (l launch) label(nodeClaim *karpv1.NodeClaim) *launch {
	l.labels = map[string]string{}
	maps.Copy(l.labels, l.choice.Template.Labels)
	for _, requirements := range []karpscheduling.Requirements{l.instanceType.Requirements, l.offering.Requirements} {
		for key, requirement := range requirements {
			if requirement.Operator() == corev1.NodeSelectorOpIn && requirement.Len() == 1 && key != v1alpha1.ReservationIDLabel {
				l.labels[key] = requirement.Any()
			}
		}
	}
	if reservation := offering.ReservationOf(l.offering); reservation != "" {
		l.labels[v1alpha1.ReservationIDLabel] = reservation
	}
	l.labels[v1alpha1.NodePriceLabel] = l.price()
	maps.Copy(l.labels, nodeClaim.Labels)
	return &l
}

// price is the machine's, without commitments: those are the account's matter, and change. A NodeOverlay may set another one.
func (l launch) price() string {
	price := l.offering.Price
	if price == l.choice.Offering.Price {
		price = l.choice.ListPrice
	}
	return strconv.FormatFloat(price, 'f', -1, 64)
}
