// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"slices"

	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// Full is the set of exhausted limits that keep an offering from being launched until a machine goes. It is empty if anything else keeps it
// too, such as a paused source, a missing price, or a failure of the infrastructure.
type Full uint8

// Limits that may be exhausted.
const (
	// FullSource: the template source has its maximum size.
	FullSource Full = 1 << iota
	// FullReservation: the reservation has as many machines as it may have.
	FullReservation
	// FullLease: the hosted cluster's CapacityLease leaves too little, and the operator grants no more.
	FullLease
	// FullHosts: the infrastructure has no spare host, of a kind whose machines are hosts of a fixed set.
	FullHosts
)

// full returns the limits that keep an offering from being launched, if nothing else does.
func (b *builder) full(tmpl *template.Template, key offering.Key, obstacle string, offer capacity.Offer) (full Full) {
	switch {
	case obstacle == v1alpha1.TemplateFull:
		full |= FullSource
	case obstacle != "":
		return 0
	}
	switch {
	case offer.Full:
		full |= FullLease
	case !offer.Available:
		return 0
	}
	if !b.isUnavailable(tmpl, key) {
		return full
	}
	if entry, failed := b.Unavailable.Entry(key); !failed || entry.Lacks != offering.LackOfCapacity || !tmpl.Kind.Hosts() {
		return 0
	}
	return full | FullHosts
}

// Vacated is a machine that is to be terminated before its replacement is launched.
type Vacated struct {
	// NodeClaim of the machine, and its offering and source.
	NodeClaim string
	offering.Key
	Source string
}

// Frees reports whether a choice could be launched if the machine went.
func (c *Choice) frees(machine Vacated, lease capacityprovider.Limiter) bool {
	return c.Full != 0 &&
		(c.Full&(FullSource|FullHosts) == 0 || c.Template.Source.Annotation() == machine.Source) &&
		(c.Full&FullReservation == 0 || c.Key.Reservation == machine.Reservation) &&
		(c.Full&FullLease == 0 || lease.FitsWithout(machine.NodeClaim, capacityprovider.MachineOf(c.Key, c.Template)))
}

// Without returns instance types of the snapshot as they would be offered if a machine went, and the limits that close those offerings
// now. It copies the types that it changes. Reserved offerings are as before, because Karpenter core counts their slots itself.
func (s *Snapshot) Without(machine Vacated, lease capacityprovider.Limiter, instanceTypes []*karpcloudprovider.InstanceType,
) (opened []*karpcloudprovider.InstanceType, full Full) {
	return s.open(instanceTypes, func(choice *Choice) int {
		if choice.Key.Reservation == "" && choice.frees(machine, lease) {
			return unlimited
		}
		return 0
	})
}

// InTime returns instance types of the snapshot as they would be offered if offerings of which the lease leaves too little already had room
// for a number of machines.
func (s *Snapshot) InTime(room func(capacity.Machine) int, instanceTypes []*karpcloudprovider.InstanceType,
) []*karpcloudprovider.InstanceType {
	opened, _ := s.open(instanceTypes, func(choice *Choice) int {
		if choice.Key.Reservation != "" && choice.leaseFull || choice.Key.Reservation == "" && choice.Full == FullLease {
			return room(capacityprovider.MachineOf(choice.Key, choice.Template))
		}
		return 0
	})
	return opened
}

// open returns instance types of the snapshot with some offerings available that aren't, and the limits that close those now. It copies the
// types that it changes. room returns how many machines of an offering there are then.
func (s *Snapshot) open(instanceTypes []*karpcloudprovider.InstanceType, room func(*Choice) int,
) (opened []*karpcloudprovider.InstanceType, full Full) {
	opened = instanceTypes
	for i, it := range instanceTypes {
		r, ok := s.find(it.Name)
		if !ok {
			continue
		}
		var offerings karpcloudprovider.Offerings
		for _, choice := range r.choices {
			// A type that the NodePool may not launch has offerings of its own.
			at := slices.Index(it.Offerings, choice.Offering)
			if at < 0 {
				continue
			}
			machines := room(choice)
			if machines == 0 {
				continue
			}
			if offerings == nil {
				offerings = slices.Clone(it.Offerings)
			}
			open := *it.Offerings[at]
			open.Available = true
			if choice.Key.Reservation != "" {
				open.ReservationCapacity = machines
			}
			offerings[at], full = &open, full|choice.Full
		}
		if offerings == nil {
			continue
		}
		if &opened[0] == &instanceTypes[0] {
			opened = slices.Clone(instanceTypes)
		}
		opened[i] = offering.With(it, offerings)
	}
	return opened, full
}
