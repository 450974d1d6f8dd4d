// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"context"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/capacity"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

type (
	// vacatedKey is the key of an instancetype.Vacated in a context.
	vacatedKey struct{}
	// inTimeKey is the key in a context of the room of InTime.
	inTimeKey struct{}
)

// Vacate returns a context in which GetInstanceTypes answers as if a NodeClaim's machine had gone, and the limits that are exhausted with
// it; false if nothing could be launched then that can't be now. It reads memory only.
func (c *CloudProvider) Vacate(
	ctx context.Context, nodeClaim *karpv1.NodeClaim,
) (vacated context.Context, full instancetype.Full, ok bool) {
	m, err := c.Machines.ForNodeClaim(ctx, nodeClaim.UID)
	if err != nil {
		return ctx, 0, false
	}
	origin := inventory.OriginOf(m)
	snapshot, choice, _ := c.resolve(nodeClaim.Spec.NodeClassRef.Name, origin.Key)
	if snapshot == nil || origin.Reservation != "" {
		return ctx, choice.Full, choice.Full != 0 // of a reservation, Karpenter core counts the slots itself
	}
	machine := instancetype.Vacated{NodeClaim: nodeClaim.Name, Key: origin.Key, Source: origin.Source}
	if _, full = snapshot.Without(machine, c.Capacity, snapshot.InstanceTypes); full == 0 {
		return ctx, 0, false
	}
	return context.WithValue(ctx, vacatedKey{}, machine), full, true
}

// InTime returns a context in which GetInstanceTypes answers as if there already was the room that the cluster may have in time: that many
// machines of an offering of which the Limiter leaves too little now.
func (c *CloudProvider) InTime(ctx context.Context, room func(capacity.Machine) int) context.Context {
	return context.WithValue(ctx, inTimeKey{}, room)
}

// MachineOf returns a machine of an offering as the CapacityLease counts it; false if the node class doesn't offer it any more.
func (c *CloudProvider) MachineOf(nodeClass, instanceType string, o *karpcloudprovider.Offering) (capacity.Machine, bool) {
	_, choice, ok := c.resolve(nodeClass, offering.KeyOf(instanceType, o))
	if !ok {
		return capacity.Machine{}, false
	}
	return capacityprovider.MachineOf(choice.Key, choice.Template), true
}

// resolve returns the last snapshot of a node class, nil if there is none, and its choice for an offering.
func (c *CloudProvider) resolve(nodeClass string, key offering.Key) (*instancetype.Snapshot, instancetype.Choice, bool) {
	snapshot, err := c.InstanceTypes.Cached(nodeClass)
	if err != nil {
		return nil, instancetype.Choice{}, false
	}
	choice, ok := snapshot.ResolveKey(key)
	return snapshot, choice, ok
}
