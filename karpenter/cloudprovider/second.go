// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// Alternative returns the cheapest available offering for a NodeClaim beside that of its Machine, and what such a machine has; false if
// there is none, or nothing can be launched now. It reserves nothing. Offerings of a reservation don't count.
func (c *CloudProvider) Alternative(ctx context.Context, nodeClaim *karpv1.NodeClaim, first offering.Key) (offering.Key, corev1.ResourceList, bool) {
	nodeClass, err := c.readyNodeClass(ctx, nodeClaim)
	if err != nil {
		return offering.Key{}, nil, false
	}
	snapshot, err := c.InstanceTypes.List(ctx, nodeClass)
	if err != nil {
		return offering.Key{}, nil, false
	}
	instanceTypes, err := c.launchable(ctx, nodeClaim, snapshot)
	if err != nil {
		return offering.Key{}, nil, false
	}
	for alternative := range c.launches(nodeClaim, snapshot, instanceTypes) {
		if key := alternative.choice.Key; !excludes(first, key) {
			return key, alternative.instanceType.Capacity, true
		}
	}
	return offering.Key{}, nil, false
}

// excluded returns which offerings a NodeClaim may not have: none, unless it was created beside another one whose machine is slow.
func (c *CloudProvider) excluded(ctx context.Context, nodeClaim *karpv1.NodeClaim) (func(offering.Key) bool, error) {
	name := nodeClaim.Annotations[v1alpha1.SecondOfAnnotation]
	if name == "" {
		return func(offering.Key) bool { return false }, nil
	}
	first := &karpv1.NodeClaim{}
	if err := c.Guest.Get(ctx, types.NamespacedName{Name: name}, first, client.UnsafeDisableDeepCopy); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading NodeClaim %s, beside which NodeClaim %s is launched: %w", name, nodeClaim.Name, err)
	}
	key := offering.Key{} // that of a Machine which is gone needn't be avoided
	switch m, err := c.Machines.ForNodeClaim(ctx, first.UID); {
	case err == nil:
		key = inventory.OfferingOf(m)
	case !errors.Is(err, machine.ErrNotFound):
		return nil, fmt.Errorf("finding the Machine of NodeClaim %s: %w", name, err)
	}
	return func(other offering.Key) bool { return excludes(key, other) }, nil
}

// excludes reports whether a second launch may not have an offering. It doesn't use up reservations.
func excludes(first, other offering.Key) bool {
	return other == first || other.Reservation != "" || other.CapacityType == karpv1.CapacityTypeReserved
}
