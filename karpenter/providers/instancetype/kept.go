// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// Gone reports whether a source is known to have stopped offering what a machine was launched as. An unavailable
// offering isn't gone, nor is one whose source is unreadable or unusable.
func (s *Snapshot) Gone(source string, key offering.Key) bool {
	if source == "" {
		return false
	}
	if _, found := s.templates[source]; !found && !s.Knows(source) {
		return false
	}
	_, offered := s.choices[key]
	return !offered && !s.zoneless(key)
}

// zoneless reports whether a zone can't be called gone, because there were no zones then or are none now: a node
// stays valid when the infrastructure provider starts or stops reporting zones.
func (s *Snapshot) zoneless(key offering.Key) bool {
	if key.Zone == DefaultZone {
		return s.Offers(key.InstanceType, key.CapacityType)
	}
	key.Zone = DefaultZone
	_, ok := s.choices[key]
	return ok
}

// keep adds the offerings of existing machines that are neither offered any more nor gone. Karpenter replaces a node
// whose instance type, zone and capacity type isn't in the list, without asking the cloud provider, and doesn't
// consolidate a node without a price. None of the added offerings is available.
func (b builder) keep(s *Snapshot) {
	kept, used := map[offering.Key]float64{}, sets.New[string]()
	for _, origin := range b.Inventory.Origins() {
		if origin.InstanceType == "" || origin.Zone == "" || origin.CapacityType == "" || s.Gone(origin.Source, origin.Key) {
			continue
		}
		used.Insert(origin.InstanceType)
		if _, offered := s.choices[origin.Key]; offered {
			continue
		}
		price := b.priceOf(s, origin.Key, origin.Price)
		if other, ok := kept[origin.Key]; ok {
			price = min(price, other)
		}
		kept[origin.Key] = price
	}
	for _, key := range slices.SortedFunc(maps.Keys(kept), offering.Key.Compare) {
		it, ok := s.find(key.InstanceType)
		if !ok {
			it = b.unknown(key.InstanceType)
			at, _ := slices.BinarySearchFunc(s.InstanceTypes, key.InstanceType, byName)
			s.InstanceTypes = slices.Insert(s.InstanceTypes, at, it)
		}
		it.Offerings = append(it.Offerings, &cloudprovider.Offering{
			Requirements: b.requirementsOf(place{key.Zone, key.CapacityType}),
			Price:        kept[key],
		})
	}
	for name := range s.taints {
		if it, ok := s.find(name); ok && used.Has(name) {
			s.closed[name] = closed(it)
		}
	}
}

// priceOf is a machine's current price in the cheapest of the zones, else the price that it was launched at.
func (b builder) priceOf(s *Snapshot, key offering.Key, chosen float64) float64 {
	price, found := chosen, false
	it, ok := s.find(key.InstanceType)
	if !ok {
		return price
	}
	for _, o := range it.Offerings {
		if o.CapacityType() == key.CapacityType && (!found || o.Price < price) {
			price, found = o.Price, true
		}
	}
	return price
}

// unknown is an instance type known only from its machines. No pod fits it, and it has no label that a NodePool could
// require.
func (b builder) unknown(name string) *cloudprovider.InstanceType {
	it := &cloudprovider.InstanceType{
		Name:         name,
		Requirements: scheduling.NewRequirements(scheduling.NewRequirement(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, name)),
		Capacity:     corev1.ResourceList{},
		Overhead:     &cloudprovider.InstanceTypeOverhead{},
	}
	for key, without := range b.without {
		if !it.Requirements.Has(key) {
			it.Requirements[key] = without
		}
	}
	return it
}

// closed is an instance type without available offerings.
func closed(it *cloudprovider.InstanceType) *cloudprovider.InstanceType {
	offerings := make(cloudprovider.Offerings, len(it.Offerings))
	for i, o := range it.Offerings {
		offerings[i] = &cloudprovider.Offering{Requirements: o.Requirements, Price: o.Price}
	}
	return &cloudprovider.InstanceType{
		Name: it.Name, Requirements: it.Requirements, Offerings: offerings,
		Capacity: it.Capacity, DynamicResources: it.DynamicResources, Overhead: it.Overhead,
	}
}

func (s *Snapshot) find(instanceType string) (*cloudprovider.InstanceType, bool) {
	at, ok := slices.BinarySearchFunc(s.InstanceTypes, instanceType, byName)
	if !ok {
		return nil, false
	}
	return s.InstanceTypes[at], true
}

func byName(it *cloudprovider.InstanceType, name string) int { return cmp.Compare(it.Name, name) }
