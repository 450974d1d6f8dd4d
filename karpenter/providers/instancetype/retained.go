// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"cmp"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// Gone reports whether a source's template has changed so that it no longer makes the offering of a machine: its instance type,
// its own zone or its own capacity type is another. A source, a zone or a price that is absent closes offerings, and is no
// reason to replace nodes: it may come back.
func (s *Snapshot) Gone(source string, key offering.Key) bool {
	r, ok := s.find(key.InstanceType)
	if !ok {
		r = &resolved{}
	}
	return s.gone(r, source, key)
}

func (k *known) gone(r *resolved, source string, key offering.Key) bool {
	tmpl, found := k.templates[source]
	if !found {
		return false
	}
	if _, offered := r.choice(key); offered {
		// Another template may make the same offering.
		return false
	}
	return tmpl.InstanceType != key.InstanceType ||
		tmpl.CapacityType != "" && tmpl.CapacityType != key.CapacityType ||
		// There were no zones when a machine in the default zone was launched.
		key.Zone != DefaultZone && len(tmpl.FailureDomains) > 0 && !slices.ContainsFunc(tmpl.FailureDomains, func(domain string) bool {
			// A machine of a time when nothing told the region has the failure domain as its zone.
			return domain == key.Zone || k.zone(tmpl, domain) == key.Zone
		})
}

// keep adds the offerings of existing machines that are neither offered any more nor gone. Karpenter replaces a node
// whose instance type, zone and capacity type isn't in the list, without asking the cloud provider, and doesn't
// consolidate a node without a price. None of the added offerings is available.
func (b *builder) keep(r *resolved, name string) {
	retained, used := map[offering.Key]float64{}, false
	for _, origin := range b.Inventory.Origins(name) {
		if name == "" || origin.Zone == "" || origin.CapacityType == "" || b.gone(r, origin.Source, origin.Key) {
			continue
		}
		used = true
		keys := []offering.Key{origin.Key}
		if origin.NodeZone != "" {
			inNodeZone := origin.Key
			inNodeZone.Zone = origin.NodeZone
			keys = append(keys, inNodeZone)
		}
		for _, key := range keys {
			if _, offered := r.choice(key); offered {
				continue
			}
			price := r.priceOf(key.CapacityType, origin.Price)
			if other, ok := retained[key]; ok {
				price = min(price, other)
			}
			retained[key] = price
		}
	}
	if len(retained) > 0 && r.InstanceType == nil {
		r.InstanceType = b.unknown(name)
	}
	for _, key := range slices.SortedFunc(maps.Keys(retained), offering.Key.Compare) {
		r.Offerings = append(r.Offerings,
			&karpcloudprovider.Offering{Requirements: b.requirementsOf(key), Price: retained[key], ReservationCapacity: unlimited})
	}
	if used && (len(r.taints) > 0 || b.lacksLabels(name)) {
		r.closed = closed(r.InstanceType)
	}
}

// unlimited is the reservation capacity of an offering that isn't available: of several offerings of one reservation, Karpenter's
// reservation manager takes the least, available or not.
const unlimited = math.MaxInt32

// priceOf is a machine's current price in the cheapest of the zones, else the price that it was launched at.
func (r *resolved) priceOf(capacityType string, launched float64) float64 {
	price, found := launched, false
	for _, choice := range r.choices {
		if choice.Key.CapacityType == capacityType && choice.priced && (!found || choice.Offering.Price < price) {
			price, found = choice.Offering.Price, true
		}
	}
	return price
}

// unknown is an instance type known only from its machines. No pod fits it, and it has no label that a NodePool could
// require.
func (b *builder) unknown(name string) *karpcloudprovider.InstanceType {
	it := &karpcloudprovider.InstanceType{
		Name: name,
		Requirements: karpscheduling.NewRequirements(
			karpscheduling.NewRequirement(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, name)),
		Capacity: corev1.ResourceList{},
		Overhead: &karpcloudprovider.InstanceTypeOverhead{},
	}
	for key, without := range b.without {
		if !it.Requirements.Has(key) {
			it.Requirements[key] = without
		}
	}
	return it
}

// closed is an instance type without available offerings.
func closed(it *karpcloudprovider.InstanceType) *karpcloudprovider.InstanceType {
	offerings := make(karpcloudprovider.Offerings, len(it.Offerings))
	for i, o := range it.Offerings {
		offerings[i] = &karpcloudprovider.Offering{Requirements: o.Requirements, Price: o.Price, ReservationCapacity: unlimited}
	}
	return offering.With(it, offerings)
}

func byName(it *karpcloudprovider.InstanceType, name string) int { return cmp.Compare(it.Name, name) }
