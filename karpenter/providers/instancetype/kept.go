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

// Gone tells whether what a machine was made as, from a source, is known not to be offered any more. An offering that can't be
// had now isn't gone, nor is one whose source can't be read or used.
func (s *Snapshot) Gone(source string, key offering.Key) bool {
	if source == "" {
		return false
	}
	if _, found := s.shapes[source]; !found && !s.Knows(source) {
		return false
	}
	_, offered := s.choices[key]
	return !offered && !s.zoneless(key)
}

// zoneless tells whether it can't be said that a zone has gone, because there were no zones then or there are none now: that
// the infrastructure provider begins or ceases to report them doesn't make a node wrong.
func (s *Snapshot) zoneless(key offering.Key) bool {
	if key.Zone == DefaultZone {
		return s.Offers(key.InstanceType, key.CapacityType)
	}
	key.Zone = DefaultZone
	_, ok := s.choices[key]
	return ok
}

// keep adds what machines that there are were made as, where it isn't offered and hasn't gone either. Karpenter itself replaces
// each node whose type, zone and capacity type it isn't told, and doesn't ask anybody before that; nor does it consolidate a node
// whose price it isn't told. None of what is added is available.
func (b builder) keep(s *Snapshot) {
	kept, used := map[offering.Key]float64{}, sets.New[string]()
	for _, form := range b.Inventory.Origins() {
		if form.InstanceType == "" || form.Zone == "" || form.CapacityType == "" || s.Gone(form.Source, form.Key) {
			continue
		}
		used.Insert(form.InstanceType)
		if _, offered := s.choices[form.Key]; offered {
			continue
		}
		price := b.priceOf(s, form.Key, form.Price)
		if other, ok := kept[form.Key]; ok {
			price = min(price, other)
		}
		kept[form.Key] = price
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

// priceOf is what a machine would cost now in the cheapest of the zones, or else what it was chosen for.
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

// unknown is an instance type of which nothing is known but that machines have it. Nothing fits on it, and it has
// no label that a NodePool could ask for.
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

// closed is an instance type of which nothing is available.
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
