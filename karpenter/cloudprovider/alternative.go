// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// Alternative returns the cheapest available offering for a NodeClaim beside that of its Machine, and the capacity of its machines. It returns
// false if there is none, or nothing can be launched now. It reserves nothing. Offerings of a reservation don't count.
func (c *CloudProvider) Alternative(ctx context.Context, nodeClaim *karpv1.NodeClaim, current offering.Key) (offering.Key, corev1.ResourceList, bool) {
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
		if key := alternative.choice.Key; key != current && key.Reservation == "" && key.CapacityType != karpv1.CapacityTypeReserved {
			return key, alternative.instanceType.Capacity, true
		}
	}
	return offering.Key{}, nil, false
}
