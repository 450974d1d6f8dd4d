// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"context"

	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/capacity"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// inTimeKey is the key in a context of InTime.
type inTimeKey struct{}

// InTime returns a context in which GetInstanceTypes answers as if the CapacityLease already had the room that may be granted in time.
func (c *CloudProvider) InTime(ctx context.Context) context.Context {
	return context.WithValue(ctx, inTimeKey{}, true)
}

// MachineOf returns a machine of an offering as the CapacityLease counts it; false if the node class doesn't offer it any more.
func (c *CloudProvider) MachineOf(nodeClass, instanceType string, o *karpcloudprovider.Offering) (capacity.Machine, bool) {
	snapshot, err := c.InstanceTypes.Cached(nodeClass)
	if err != nil {
		return capacity.Machine{}, false
	}
	choice, ok := snapshot.ResolveKey(offering.KeyOf(instanceType, o))
	if !ok {
		return capacity.Machine{}, false
	}
	return capacityprovider.MachineOf(choice.Key, choice.Template), true
}
