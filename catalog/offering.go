// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"fmt"
	"slices"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/catalog/patch"
	"github.com/autonode-io/autonode/internal/message"
)

// Offering of an instance type. No two of a type are for the same zone, capacity type and reservation.
type Offering struct {
	// Zone is empty for every failure domain of a Cluster.
	Zone         string
	CapacityType string
	// Price in US dollars an hour, if Priced. Nothing is launched without one.
	Price  float64
	Priced bool
	// Reservation is the ID of the reservation that a reserved offering uses up, and Count the number of machines that a cluster may have in
	// it.
	Reservation string
	Count       int
}

// place identifies an offering of a type.
type place struct{ zone, capacityType, reservation string }

func (o Offering) place() place { return place{o.Zone, o.CapacityType, o.Reservation} }

// readOfferings keeps the usable offerings, and reports the problems of the others.
func (t *Type) readOfferings(offerings []v1alpha1.CatalogOffering) string {
	var problems []string
	seen := map[place]bool{}
	for i := range offerings {
		parsed, problem := t.readOffering(&offerings[i])
		if problem == "" && len(t.Offerings)+len(parsed) > MaxOfferings {
			problem = fmt.Sprintf("the instance type has more than %d offerings", MaxOfferings)
		}
		for _, o := range parsed {
			if problem == "" && seen[o.place()] {
				problem = fmt.Sprintf("zone %q, %s has an offering already", o.Zone, o.CapacityType)
			}
		}
		if problem != "" {
			problems = append(problems, fmt.Sprintf("offerings[%d]: %s", i, problem))
			continue
		}
		for _, o := range parsed {
			seen[o.place()] = true
			t.Offerings = append(t.Offerings, o)
		}
	}
	return message.List(problems, 3, "; ")
}

func (t *Type) readOffering(entry *v1alpha1.CatalogOffering) (parsed []Offering, problem string) {
	o := Offering{CapacityType: entry.CapacityType}
	if o.CapacityType == "" {
		o.CapacityType = OnDemand
	}
	switch o.CapacityType {
	case OnDemand, Spot:
		if entry.Reservation != nil {
			return nil, fmt.Sprintf("only a reserved offering has a reservation, and capacityType is %s", o.CapacityType)
		}
	case Reserved:
		if entry.Reservation == nil {
			return nil, "capacityType reserved needs reservation"
		}
		if problem := LabelValueProblem(entry.Reservation.ID); problem != "" {
			return nil, fmt.Sprintf("reservation.id %q %s", message.Cut(entry.Reservation.ID, maxShown), problem)
		}
		if entry.Reservation.Count < 0 {
			return nil, fmt.Sprintf("reservation.count: %d is negative", entry.Reservation.Count)
		}
		if !t.Patches.Refers(patch.ReservationID) {
			return nil, "no patch writes the reservation into the machine, so that machines would not use it: write the variable reservationID by " +
				"spec.patches"
		}
		o.Reservation, o.Count = entry.Reservation.ID, int(entry.Reservation.Count)
	default:
		return nil, fmt.Sprintf("capacityType %q is neither on-demand nor spot nor reserved", message.Cut(o.CapacityType, maxShown))
	}
	if entry.Price != "" {
		var err error
		if o.Price, err = ParsePrice(entry.Price); err != nil {
			return nil, fmt.Sprintf("price %q %s", message.Cut(entry.Price, maxShown), err)
		}
		o.Priced = true
	}
	if len(entry.Zones) == 0 {
		return []Offering{o}, ""
	}
	for _, zone := range entry.Zones {
		if problem := LabelValueProblem(string(zone)); problem != "" {
			return nil, fmt.Sprintf("zone %q %s", message.Cut(string(zone), maxShown), problem)
		}
		if slices.ContainsFunc(parsed, func(other Offering) bool { return other.Zone == string(zone) }) {
			return nil, fmt.Sprintf("zone %q is there twice", zone)
		}
		o.Zone = string(zone)
		parsed = append(parsed, o)
	}
	return parsed, ""
}
