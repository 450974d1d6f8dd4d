// SPDX-License-Identifier: Apache-2.0

package offering

import (
	"cmp"
	"hash/fnv"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"
)

// Candidate is an offering that may be launched.
type Candidate struct {
	InstanceType *cloudprovider.InstanceType
	Offering     *cloudprovider.Offering
}

// Key identifies the candidate's offering.
func (c Candidate) Key() Key {
	return Key{InstanceType: c.InstanceType.Name, Zone: c.Offering.Zone(), CapacityType: c.Offering.CapacityType()}
}

// Cheapest returns every available offering that meets the requirements and fits the requests, cheapest first. Among
// equally cheap offerings of one instance type, the seed decides the order: the NodeClaim's UID makes a retried
// launch choose the same one, and spreads many NodeClaims over the zones. Equally cheap instance types are ordered by
// name.
func Cheapest(instanceTypes []*cloudprovider.InstanceType, requirements scheduling.Requirements, requests corev1.ResourceList, seed string) []Candidate {
	type ranked struct {
		Candidate
		rank uint64
	}
	var candidates []ranked
	for _, it := range instanceTypes {
		if it.Requirements.Intersects(requirements) != nil {
			continue
		}
		for _, group := range it.AllocatableOfferingsList() {
			if !resources.Fits(requests, group.Allocatable) {
				continue
			}
			for _, o := range group.Offerings {
				if requirements.IsCompatible(o.Requirements, scheduling.AllowUndefinedWellKnownLabels) {
					candidates = append(candidates, ranked{Candidate{it, o}, rank(seed, o)})
				}
			}
		}
	}
	slices.SortFunc(candidates, func(a, b ranked) int {
		return cmp.Or(
			cmp.Compare(a.Offering.Price, b.Offering.Price),
			cmp.Compare(a.InstanceType.Name, b.InstanceType.Name),
			cmp.Compare(a.rank, b.rank),
			a.Key().Compare(b.Key()),
		)
	})
	result := make([]Candidate, len(candidates))
	for i := range candidates {
		result[i] = candidates[i].Candidate
	}
	return result
}

func rank(seed string, o *cloudprovider.Offering) uint64 {
	h := fnv.New64a()
	// A hash's Write returns no error.
	_, _ = h.Write([]byte(seed + "\x00" + o.Zone() + "\x00" + o.CapacityType()))
	return h.Sum64()
}
