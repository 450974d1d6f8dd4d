// SPDX-License-Identifier: Apache-2.0

package offering

import (
	"cmp"
	"hash/fnv"
	"iter"
	"slices"

	corev1 "k8s.io/api/core/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"
)

// Candidate is an offering that may be launched.
type Candidate struct {
	InstanceType *karpcloudprovider.InstanceType
	Offering     *karpcloudprovider.Offering
}

// Key identifies the candidate's offering.
func (c Candidate) Key() Key {
	return KeyOf(c.InstanceType.Name, c.Offering)
}

// Order is the offerings of instance types by price, available or not. It serves any instance types with the same
// offerings at the same prices, whatever their availability.
type Order []position

// position of an offering, and its price.
type position struct {
	price                  float64
	instanceType, offering int32
}

// OrderOf orders the offerings of instance types, which are ordered by name.
func OrderOf(instanceTypes []*karpcloudprovider.InstanceType) Order {
	var order Order
	for i, it := range instanceTypes {
		for j, o := range it.Offerings {
			order = append(order, position{price: o.Price, instanceType: int32(i), offering: int32(j)})
		}
	}
	slices.SortFunc(order, position.compare)
	return order
}

func (p position) compare(other position) int {
	return cmp.Or(cmp.Compare(p.price, other.price), cmp.Compare(p.instanceType, other.instanceType), cmp.Compare(p.offering, other.offering))
}

// With returns the order after the offerings of one instance type have changed. It doesn't sort the others again.
func (order Order) With(instanceType int32, it *karpcloudprovider.InstanceType) Order {
	changed := Order{}
	for j, o := range it.Offerings {
		changed = append(changed, position{price: o.Price, instanceType: instanceType, offering: int32(j)})
	}
	slices.SortFunc(changed, position.compare)
	merged := make(Order, 0, len(order)+len(changed))
	for _, p := range order {
		if p.instanceType == instanceType {
			continue
		}
		for len(changed) > 0 && changed[0].compare(p) < 0 {
			merged, changed = append(merged, changed[0]), changed[1:]
		}
		merged = append(merged, p)
	}
	return append(merged, changed...)
}

// Cheapest returns every available offering that meets the requirements and fits the requests, cheapest first. It
// checks no more of them than its caller reads. Among equally cheap offerings of one instance type, the seed decides the
// order: the NodeClaim's UID makes a retried launch choose the same one, and spreads many NodeClaims over the zones.
// Equally cheap instance types are ordered by name.
func (order Order) Cheapest(
	instanceTypes []*karpcloudprovider.InstanceType, requirements karpscheduling.Requirements, requests corev1.ResourceList, seed string,
) iter.Seq[Candidate] {
	return func(yield func(Candidate) bool) {
		checked := check{requirements: requirements, requests: requests, seen: make([]compatibility, len(instanceTypes))}
		for first := 0; first < len(order); {
			end := first + 1
			for end < len(order) && order[end].price == order[first].price && order[end].instanceType == order[first].instanceType {
				end++
			}
			index := order[first].instanceType
			if it := instanceTypes[index]; checked.instanceType(index, it) {
				for _, candidate := range checked.candidates(it, order[first:end], seed) {
					if !yield(candidate) {
						return
					}
				}
			}
			first = end
		}
	}
}

type compatibility uint8

const (
	unchecked compatibility = iota
	compatible
	incompatible
)

// check compares instance types with a NodeClaim, each once.
type check struct {
	requirements karpscheduling.Requirements
	requests     corev1.ResourceList
	seen         []compatibility
}

// instanceType reports whether an instance type meets the requirements, and any of its offerings fits the requests.
func (c *check) instanceType(index int32, it *karpcloudprovider.InstanceType) bool {
	if c.seen[index] == unchecked {
		c.seen[index] = incompatible
		if it.Requirements.Intersects(c.requirements) == nil && slices.ContainsFunc(it.AllocatableOfferingsList(), c.fits) {
			c.seen[index] = compatible
		}
	}
	return c.seen[index] == compatible
}

func (c *check) fits(group karpcloudprovider.AllocatableOfferings) bool {
	return resources.Fits(c.requests, group.Allocatable)
}

// candidates returns the equally cheap offerings that meet the requirements, in the order of the seed.
func (c *check) candidates(it *karpcloudprovider.InstanceType, positions []position, seed string) (candidates []Candidate) {
	for _, p := range positions {
		o := it.Offerings[p.offering]
		if o.Launchable() && c.requirements.IsCompatible(o.Requirements, karpscheduling.AllowUndefinedWellKnownLabels) &&
			slices.ContainsFunc(it.AllocatableOfferingsList(), func(group karpcloudprovider.AllocatableOfferings) bool {
				return slices.Contains(group.Offerings, o) && c.fits(group)
			}) {
			candidates = append(candidates, Candidate{it, o})
		}
	}
	if len(candidates) > 1 {
		slices.SortFunc(candidates, func(a, b Candidate) int {
			return cmp.Or(cmp.Compare(rank(seed, a.Offering), rank(seed, b.Offering)), a.Key().Compare(b.Key()))
		})
	}
	return candidates
}

func rank(seed string, o *karpcloudprovider.Offering) uint64 {
	h := fnv.New64a()
	// A hash's Write returns no error.
	_, _ = h.Write([]byte(seed + "\x00" + o.Zone() + "\x00" + o.CapacityType()))
	return h.Sum64()
}
