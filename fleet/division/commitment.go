// SPDX-License-Identifier: Apache-2.0

package division

import (
	"cmp"
	"slices"

	"github.com/autonode-io/autonode/capacity"
)

// Kind of a commitment: whose rules say which machines it covers, and in which order.
type Kind string

// Kinds of commitments.
const (
	SavingsPlan      Kind = "SavingsPlan"      // an hourly spend, as of AWS and Azure
	ReservedInstance Kind = "ReservedInstance" // a number of EC2 instances of one type
	AzureReservation Kind = "AzureReservation" // a number of virtual machines of one size
	CommittedUse     Kind = "CommittedUse"     // an amount of vCPUs and memory, as of Google Cloud
)

// Commitment is capacity that is paid for whether it is used or not. It never covers a spot machine.
type Commitment struct {
	Name     string
	Kind     Kind
	Selector Selector
	// HourlySpend of a SavingsPlan, in the currency of the prices.
	HourlySpend float64
	// EC2Instance is the scope of a SavingsPlan that applies before those of the scope Compute.
	EC2Instance bool
	// Rates are hourly prices within HourlySpend, by instance type. Those without one are at Discount, and not covered if
	// there are rates and no Discount.
	Rates map[string]float64
	// Instances of InstanceType, for a ReservedInstance or an AzureReservation.
	Instances    float64
	InstanceType string
	// Price of one of Instances an hour; nil: the list price less Discount.
	Price *float64
	// SizeFlexible: other sizes of InstanceType's series use it, too, by the ratio of their sizes. Ratios are those of sizes by
	// instance type, instead of the published ones.
	SizeFlexible bool
	Ratios       map[string]float64
	// CPU, in vCPUs, and Memory, in GiB, of a CommittedUse.
	CPU, Memory CommittedAmount
	// Discount of a committed hour from the list price, from 0 to 1.
	Discount float64
}

// CommittedAmount is an amount of a resource that is committed, with the prices of one unit an hour: the committed one and the list price.
type CommittedAmount struct{ Amount, Price, List float64 }

// Measure is the unit that a Cover counts.
type Measure string

// Measures.
const (
	Money     Measure = "dollars"  // an hour, in the currency of the prices
	Instances Measure = "machines" // of the committed size
	CPUs      Measure = "vCPUs"
	GiBs      Measure = "GiB"
)

// Cover is one measure of a commitment. A CommittedUse has two, and all others one.
type Cover struct {
	*Commitment
	// Name of the commitment, with /cpu or /memory for a CommittedUse.
	Name    string
	Measure Measure
	// Committed in all, in the unit of Measure.
	Committed float64

	// Index of the commitment.
	Index int

	selector Selector
	// price of a unit an hour; nil: the list price less the discount. list is the list price of a vCPU or a GiB.
	price *float64
	list  float64
	// resource is the index of an uncovered part: 0 of whole machines, 1 of vCPUs, 2 of memory.
	resource int
	// tier is the place of the commitment's kind in the published order.
	tier int
}

// flexible reports whether it covers other sizes of its series.
func (c *Commitment) flexible() bool { return c.SizeFlexible && !c.isZonal() }

// isZonal reports whether it is a Reserved Instance of one zone. Several zones are those of a region.
func (c *Commitment) isZonal() bool { return c.Kind == ReservedInstance && len(c.Selector.Zones) == 1 }

// coversOf returns the covers of commitments, in the order in which they apply. That is AWS's for its own kinds: Reserved Instances, those
// of a zone first, then savings plans of the scope EC2Instance, then those of the scope Compute. Azure applies reservations before savings
// plans, and Google Cloud committed use before committed spend, likewise. Commitments of a kind apply in the order that they are given in.
// https://docs.aws.amazon.com/savingsplans/latest/userguide/sp-applying.html
func coversOf(commitments []Commitment) (covers []Cover) {
	for index := range commitments {
		c := &commitments[index]
		cover := Cover{Commitment: c, Name: c.Name, Index: index, Measure: Instances, selector: c.Selector, tier: 1}
		switch c.Kind {
		case CommittedUse:
			for i, part := range []struct {
				suffix  string
				measure Measure
				*CommittedAmount
			}{{"/cpu", CPUs, &c.CPU}, {"/memory", GiBs, &c.Memory}} {
				if part.Amount > 0 {
					cover.Name, cover.Measure, cover.Committed = c.Name+part.suffix, part.measure, part.Amount
					cover.price, cover.list, cover.resource = &part.Price, part.List, i+1
					covers = append(covers, cover)
				}
			}
			continue
		case SavingsPlan:
			cover.Measure, cover.Committed, cover.price, cover.tier = Money, max(0, c.HourlySpend), new(1.0), 3
			if c.EC2Instance {
				cover.tier = 2
			}
		default:
			cover.Committed, cover.price = max(0, c.Instances), c.Price
			if c.isZonal() {
				cover.tier = 0
				if len(cover.selector.CapacityTypes) == 0 { // a zonal one doesn't apply to a capacity reservation
					cover.selector.CapacityTypes = []string{"on-demand"}
				}
			}
			if !c.flexible() {
				cover.selector.InstanceTypes = []string{c.InstanceType}
			}
		}
		covers = append(covers, cover)
	}
	slices.SortStableFunc(covers, func(a, b Cover) int { return cmp.Compare(a.tier, b.tier) })
	return covers
}

// units returns how much of a cover a whole machine uses, and which part of its list price that covers. ok: the cover applies to it.
func (c *Cover) units(m *capacity.Priced) (units, part float64, ok bool) {
	if m.Price <= 0 || m.CapacityType == "spot" || !c.selector.Selects(m.Offering) {
		return 0, 0, false
	}
	switch c.Measure {
	case Money:
		rate, rated := c.Rates[m.InstanceType]
		switch {
		case rated:
		case c.Rates != nil && c.Discount == 0:
			return 0, 0, false
		default:
			rate = m.Price * (1 - c.Discount)
		}
		return rate, 1, true
	case Instances:
		if !c.flexible() {
			return 1, 1, true
		}
		ratio := c.ratio(m.InstanceType)
		return ratio, 1, ratio > 0
	case CPUs:
		units = float64(m.VCPUs) / 1000
	case GiBs:
		units = float64(m.Memory) / (1 << 30)
	}
	part = min(1, units*c.list/m.Price)
	return units, part, part > 0
}
