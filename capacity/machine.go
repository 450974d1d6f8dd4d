// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"cmp"
	"math"
)

// Resource is the unit that a pool counts.
type Resource string

// The resources that pools count, and their units.
const (
	Machines Resource = "machines" // machines
	VCPUs    Resource = "vcpus"    // thousandths of a vCPU
	Memory   Resource = "memory"   // bytes
	GPUs     Resource = "gpus"     // GPUs
)

// QuotaName identifies a quota of the infrastructure.
type QuotaName struct {
	// Name identifies it among the quotas of an account, in words.
	Name string
	// Counts is empty if the counted resource isn't known: then the quota concerns each machine alike.
	Counts Resource
}

// Offering is the instance type, zone and capacity type that a machine is launched with.
type Offering struct {
	InstanceType string `json:"instanceType,omitempty"`
	Zone         string `json:"zone,omitempty"`
	CapacityType string `json:"capacityType,omitempty"`
	// Reservation is the ID of the reservation that the machine uses; empty for none.
	Reservation string `json:"reservation,omitempty"`
	// Catalog is the name of the InstanceTypeCatalog that has the instance type; empty for a template's.
	Catalog string `json:"catalog,omitempty"`
}

// Compare orders offerings.
func (o Offering) Compare(other Offering) int {
	return cmp.Or(cmp.Compare(o.InstanceType, other.InstanceType), cmp.Compare(o.Zone, other.Zone),
		cmp.Compare(o.CapacityType, other.CapacityType), cmp.Compare(o.Reservation, other.Reservation), cmp.Compare(o.Catalog, other.Catalog))
}

// Machine is an offering with one machine's capacity, in the units of Resource.
type Machine struct {
	Offering
	VCPUs, Memory, GPUs int64
}

// Priced is a machine with its list prices in US dollars an hour; zero if one isn't known.
type Priced struct {
	Machine
	// Price is that of the offering, and OnDemand that of the same machine on demand when it was launched.
	Price, OnDemand float64
}

// Amount is the machine's amount of a resource.
func (m Machine) Amount(resource Resource) int64 {
	switch resource {
	case Machines:
		return 1
	case VCPUs:
		return m.VCPUs
	case Memory:
		return m.Memory
	case GPUs:
		return m.GPUs
	}
	return 0
}

// Unlimited machines of a reservation.
const Unlimited = math.MaxInt32

// Offer is the availability and price of an offering within a lease.
type Offer struct {
	// Available: another machine may be launched, maybe after more was granted.
	Available bool
	// Full: nothing but a lack in pools keeps another machine from being launched.
	Full bool
	// Remaining is how many more machines the reservation of a reserved offering has for this cluster; Unlimited if the lease
	// doesn't limit it.
	Remaining int
	// Expired: the reservation of a reserved offering has ended. Its machines are paid for as on-demand ones are.
	Expired bool
	// Price is the account's cost of another machine in US dollars an hour, and Saving its saving with one less of those that run. Both are
	// the list price where nothing is committed.
	Price, Saving float64
}
