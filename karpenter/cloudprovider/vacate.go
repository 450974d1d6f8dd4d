// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"context"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
)

// vacatedKey is the key of an instancetype.Vacated in a context.
type vacatedKey struct{}

// Vacate returns a context in which GetInstanceTypes answers as if a NodeClaim's machine had gone, and what is full without that; false if
// nothing could be launched then that can't be now. It reads memory only.
func (c *CloudProvider) Vacate(ctx context.Context, nodeClaim *karpv1.NodeClaim) (vacated context.Context, full instancetype.Full, ok bool) {
	if nodeClaim.Spec.NodeClassRef == nil {
		return ctx, 0, false
	}
	snapshot, err := c.InstanceTypes.Cached(nodeClaim.Spec.NodeClassRef.Name)
	if err != nil {
		return ctx, 0, false
	}
	m, err := c.Machines.ForNodeClaim(ctx, nodeClaim.UID)
	if err != nil {
		return ctx, 0, false
	}
	origin := inventory.OriginOf(m)
	if origin.Reservation != "" {
		choice, _ := snapshot.ResolveKey(origin.Key) // of a reservation, Karpenter core counts the slots itself
		return ctx, choice.Full, choice.Full != 0
	}
	machine := instancetype.Vacated{NodeClaim: nodeClaim.Name, Key: origin.Key, Source: origin.Source}
	if _, full = snapshot.Without(machine, c.Reservations.Capacity, snapshot.InstanceTypes); full == 0 {
		return ctx, 0, false
	}
	return context.WithValue(ctx, vacatedKey{}, machine), full, true
}
