// SPDX-License-Identifier: Apache-2.0

package methods

import (
	"context"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"
)

// consolidating is the key of a context in which core looks for cheaper nodes.
type consolidating struct{}

// Closed returns a copy of an instance type in which the offerings that closes selects aren't available.
type Closed func(it *karpcloudprovider.InstanceType, closes func(*karpcloudprovider.Offering) bool) *karpcloudprovider.InstanceType

// CheaperSpot wraps the cloud provider whose prices core compares. While core consolidates, NodePools that allow on demand don't have the
// spot offerings that cost at least the same type's on demand in their zone.
func CheaperSpot(provider karpcloudprovider.CloudProvider, closed Closed) karpcloudprovider.CloudProvider {
	return cheaper{provider, closed}
}

type cheaper struct {
	karpcloudprovider.CloudProvider
	closed Closed
}

// GetInstanceTypes implements cloudprovider.CloudProvider.
func (c cheaper) GetInstanceTypes(ctx context.Context, nodePool *karpv1.NodePool) ([]*karpcloudprovider.InstanceType, error) {
	all, err := c.CloudProvider.GetInstanceTypes(ctx, nodePool)
	if err != nil || ctx.Value(consolidating{}) == nil ||
		!allows(karpscheduling.NewNodeSelectorRequirementsWithMinValues(nodePool.Spec.Template.Spec.Requirements...)) {
		return all, err //nolint:wrapcheck // the cloud provider's own
	}
	result := slices.Clone(all)
	for i, it := range all {
		dear := func(spot *karpcloudprovider.Offering) bool {
			return spot.CapacityType() == karpv1.CapacityTypeSpot && spot.Available &&
				slices.ContainsFunc(it.Offerings, func(o *karpcloudprovider.Offering) bool {
					return o.Available && o.CapacityType() == karpv1.CapacityTypeOnDemand && o.Zone() == spot.Zone() && o.Price <= spot.Price
				})
		}
		if slices.ContainsFunc(it.Offerings, dear) {
			result[i] = c.closed(it, dear)
		}
	}
	return result, nil
}

// OnDemand wraps Karpenter core's methods: consolidation replaces nodes by on-demand machines where those cost no more than spot, as under
// a commitment.
//
// Upstream gap: core takes spot for cheaper than on demand. It compares a node with the spot prices of a replacement, and requires spot
// (docs/internals/upstream/dear-spot.md).
func OnDemand(methods []disruption.Method) []disruption.Method {
	methods = slices.Clone(methods)
	for i, wrapped := range methods {
		if wrapped.ConsolidationType() != "" {
			methods[i] = onDemand{wrapped}
		}
	}
	return methods
}

type onDemand struct{ disruption.Method }

// SetNodePoolTotals implements disruption.NodePoolTotalsSetter, for the consolidation policy Balanced.
func (m onDemand) SetNodePoolTotals(totals map[string]disruption.NodePoolTotals) {
	if setter, ok := m.Method.(disruption.NodePoolTotalsSetter); ok {
		setter.SetNodePoolTotals(totals)
	}
}

// ComputeCommands implements disruption.Method.
func (m onDemand) ComputeCommands(ctx context.Context, budgets map[string]int, candidates ...*disruption.Candidate,
) ([]disruption.Command, error) {
	commands, err := m.Method.ComputeCommands(context.WithValue(ctx, consolidating{}, true), budgets, candidates...)
	for _, command := range commands {
		price := 0.0
		for _, candidate := range command.Candidates {
			price += candidate.Price
		}
		for _, replacement := range command.Replacements {
			prefer(replacement.NodeClaim, price)
		}
	}
	return commands, err //nolint:wrapcheck // core's own
}

// prefer makes a replacement that core requires to be spot one on demand, if that is allowed, its cheapest machine, and below a price.
func prefer(replacement *scheduling.NodeClaim, below float64) {
	if allows(replacement.Requirements) ||
		!allows(karpscheduling.NewNodeSelectorRequirementsWithMinValues(replacement.Spec.Requirements...)) ||
		slices.ContainsFunc(replacement.Pods, func(pod *corev1.Pod) bool { return !allows(karpscheduling.NewPodRequirements(pod)) }) {
		return
	}
	requirements := maps.Clone(replacement.Requirements)
	requirements[karpv1.CapacityTypeLabelKey] = karpscheduling.NewRequirement(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn,
		karpv1.CapacityTypeOnDemand)
	options := slices.DeleteFunc(slices.Clone(replacement.InstanceTypeOptions), func(it *karpcloudprovider.InstanceType) bool {
		return it.Offerings.Launchable().WorstLaunchPrice(requirements) >= below
	})
	_, _, err := options.SatisfiesMinValues(requirements)
	if err == nil && cheapest(options, requirements) < cheapest(replacement.InstanceTypeOptions, replacement.Requirements) {
		replacement.Requirements, replacement.InstanceTypeOptions = requirements, options
	}
}

// allows reports whether requirements allow on demand.
func allows(requirements karpscheduling.Requirements) bool {
	return requirements.Get(karpv1.CapacityTypeLabelKey).Has(karpv1.CapacityTypeOnDemand)
}

// cheapest is the lowest price of a machine that can be launched, in USD per hour.
func cheapest(options karpcloudprovider.InstanceTypes, requirements karpscheduling.Requirements) float64 {
	price := math.Inf(1)
	for _, it := range options {
		if offerings := it.Offerings.Launchable().Compatible(requirements); len(offerings) > 0 {
			price = min(price, offerings.Cheapest().Price)
		}
	}
	return price
}
