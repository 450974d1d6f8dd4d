// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"slices"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
)

// Failure is an offering that Karpenter doesn't launch for a while, because it has failed.
type Failure struct {
	// InstanceType, CapacityType and Zone of the offering; without a zone all of them.
	InstanceType, CapacityType, Zone string
	// NodePool that the offering is closed to; empty for all.
	NodePool string
	// Message of the event that reports it.
	Message string
	Until   time.Time
}

// closes reports whether a failure closes an offering to a NodePool at a time.
func (f *Failure) closes(nodePool, instanceType string, o *karpcloudprovider.Offering, now time.Time) bool {
	return f.InstanceType == instanceType && f.CapacityType == o.CapacityType() && (f.Zone == "" || f.Zone == o.Zone()) &&
		(f.NodePool == "" || f.NodePool == nodePool) && now.Before(f.Until)
}

// launchable returns instance types as Karpenter has them for a NodePool: what has failed isn't available, and nothing is while the node
// class reports so.
func (s *Simulation) launchable(nodePool *karpv1.NodePool,
	instanceTypes []*karpcloudprovider.InstanceType) []*karpcloudprovider.InstanceType {
	exhausted := s.exhausted(nodePool.Spec.Template.Spec.NodeClassRef.Name) != ""
	closed := make([]*karpcloudprovider.InstanceType, len(instanceTypes))
	for i, it := range instanceTypes {
		closed[i] = withOfferings(it, func(o *karpcloudprovider.Offering) {
			o.Available = o.Available && !exhausted && len(s.failures(nodePool.Name, it.Name, o)) == 0
		})
	}
	return closed
}

// withOfferings returns a copy of an instance type with changed offerings.
func withOfferings(it *karpcloudprovider.InstanceType, change func(*karpcloudprovider.Offering)) *karpcloudprovider.InstanceType {
	changed := &karpcloudprovider.InstanceType{
		Name: it.Name, Requirements: it.Requirements, Capacity: it.Capacity, DynamicResources: it.DynamicResources,
		VolumeAttachmentLimits: it.VolumeAttachmentLimits, Overhead: it.Overhead,
	}
	for _, o := range it.Offerings {
		o := *o
		change(&o)
		changed.Offerings = append(changed.Offerings, &o)
	}
	return changed
}

// failures are the messages that say why offerings of an instance type are closed to a NodePool, each once.
func (s *Simulation) failures(nodePool, instanceType string, offerings ...*karpcloudprovider.Offering) []string {
	var messages []string
	now := s.Clock.Now()
	for i := range s.Failures {
		f := &s.Failures[i]
		if slices.ContainsFunc(offerings, func(o *karpcloudprovider.Offering) bool { return f.closes(nodePool, instanceType, o, now) }) &&
			!slices.Contains(messages, f.Message) {
			messages = append(messages, f.Message)
		}
	}
	return messages
}
