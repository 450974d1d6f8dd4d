// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"cmp"
	"slices"
)

// Kind of a commitment: whose rules say which machines it covers, and in which order.
type Kind string

// Kinds of commitments. Empty is Custom.
const (
	// SavingsPlan is an hourly spend, as of AWS and Azure.
	SavingsPlan Kind = "SavingsPlan"
	// ReservedInstance is a number of EC2 instances of one type.
	ReservedInstance Kind = "ReservedInstance"
	// AzureReservation is a number of virtual machines of one size.
	AzureReservation Kind = "AzureReservation"
	// CommittedUse is an amount of vCPUs and memory, as of Google Cloud.
	CommittedUse Kind = "CommittedUse"
	// Custom is an hourly spend or a number of machines at a percentage.
	Custom Kind = "Custom"
)

// Commitment is capacity that is paid for whether it is used or not. It never covers a spot machine.
type Commitment struct {
	Name     string
	Kind     Kind
	Selector Selector
	// HourlySpend of a SavingsPlan or a Custom commitment, in the currency of the prices.
	HourlySpend float64
	// EC2Instance is the scope of a SavingsPlan that applies before those of the scope Compute.
	EC2Instance bool
	// Rates are hourly prices within HourlySpend, by instance type. Those without one are at Discount, and not covered if
	// there are rates and no Discount.
	Rates map[string]float64
	// Machines is a number of machines: of InstanceType, or for Custom any that are selected.
	Machines int64
	// Price of one of Machines an hour. Zero: the list price of the covered machine less Discount.
	Price float64
	// InstanceType of a ReservedInstance or an AzureReservation.
	InstanceType string
	// SizeFlexible: other sizes of InstanceType's series use it, too, by the ratio of their sizes. Ratios are those of sizes by
	// instance type where the names don't say.
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

// Measures, and their units.
const (
	// Money in the currency of the prices, an hour.
	Money Measure = "Money"
	// Instances of the committed size.
	Instances Measure = "Instances"
	// CPUs are vCPUs, and GiBs of memory.
	CPUs Measure = "CPUs"
	GiBs Measure = "GiBs"
)

// Cover is one measure of a commitment, and how much of it is left. A CommittedUse has two, and all others one.
type Cover struct {
	// Name of the commitment, with /cpu or /memory for a CommittedUse.
	Name     string
	Selector Selector
	Measure  Measure
	// Rates and Discount of Money: see Commitment.
	Rates    map[string]float64
	Discount float64
	// Flexible is whose sizes count by their ratio to InstanceType, ReservedInstance or AzureReservation; empty for any machine that is
	// selected. Ratios of sizes whose names don't say it.
	Flexible     Kind
	InstanceType string
	Ratios       map[string]float64
	// List price of a vCPU or a GiB.
	List float64

	// Left is the unused amount, and Uncovered the amount more that running machines would use.
	Left, Uncovered float64
	// Displaced is the list price, per unit, of the machine that would lose its cover first, and Gained that of the machine that would be
	// covered next; zero for none.
	Displaced, Gained float64

	// Committed in all, and the Price of a unit; zero if that depends on the machine.
	Committed, Price float64

	// of is the commitment's index, and tier the place of its kind in the published order.
	of, tier int
}

// covers returns a commitment's covers; none without an amount.
func (c *Commitment) covers(at int) []Cover {
	cover := Cover{Name: c.Name, Selector: c.Selector, Discount: min(max(c.Discount, 0), 1), of: at}
	switch c.Kind {
	case CommittedUse:
		var covers []Cover
		for _, part := range []struct {
			suffix  string
			measure Measure
			CommittedAmount
		}{{"/cpu", CPUs, c.CPU}, {"/memory", GiBs, c.Memory}} {
			if !(part.Amount > 0) {
				continue
			}
			each := cover
			each.Name, each.Measure, each.List, each.tier = c.Name+part.suffix, part.measure, part.List, 1
			each.Committed, each.Price = part.Amount, part.Price
			covers = append(covers, each)
		}
		return covers
	case ReservedInstance, AzureReservation:
		cover.Measure, cover.InstanceType, cover.tier = Instances, c.InstanceType, 1
		if c.Kind == ReservedInstance && len(c.Selector.Zones) > 0 {
			// A zonal one is never flexible, and doesn't apply to a capacity reservation.
			cover.tier = 0
			if len(cover.Selector.CapacityTypes) == 0 {
				cover.Selector.CapacityTypes = []string{"on-demand"}
			}
		} else if c.SizeFlexible {
			cover.Flexible, cover.Ratios = c.Kind, c.Ratios
		}
		if cover.Flexible == "" {
			cover.Selector.InstanceTypes = []string{c.InstanceType}
		}
		cover.Committed, cover.Price = max(0, float64(c.Machines)), c.Price
	case SavingsPlan:
		cover.Measure, cover.Rates, cover.tier = Money, c.Rates, 4
		if c.EC2Instance {
			cover.tier = 3
		}
		cover.Committed, cover.Price = max(0, c.HourlySpend), 1
	default:
		if c.Machines > 0 {
			cover.Measure, cover.tier, cover.Committed, cover.Price = Instances, 2, float64(c.Machines), c.Price
			break
		}
		cover.Measure, cover.Rates, cover.tier, cover.Committed, cover.Price = Money, c.Rates, 5, max(0, c.HourlySpend), 1
	}
	return []Cover{cover}
}

// CoversOf returns the covers of commitments, in the order in which they apply, all of them unused. That is AWS's for its own kinds:
// Reserved Instances, those of a zone first, then savings plans of the scope EC2Instance, then those of the scope Compute. Azure applies
// reservations before savings plans, and Google Cloud committed use before committed spend, likewise. Commitments of a kind apply in the
// order that they are given in; Custom ones in that of their discount, the highest first.
// https://docs.aws.amazon.com/savingsplans/latest/userguide/sp-applying.html
func CoversOf(commitments []Commitment) []Cover {
	var covers []Cover
	for i := range commitments {
		for _, cover := range commitments[i].covers(i) {
			cover.Left = cover.Committed
			covers = append(covers, cover)
		}
	}
	slices.SortStableFunc(covers, func(a, b Cover) int {
		if c := cmp.Compare(a.tier, b.tier); c != 0 || !a.custom() {
			return c
		}
		return cmp.Or(cmp.Compare(b.Discount, a.Discount), cmp.Compare(a.Name, b.Name))
	})
	return covers
}

// spot machines are never covered.
const spotCapacity = "spot"

// units returns how much of a cover a whole machine uses, and which part of its list price that covers. ok: the cover applies to it.
func (c *Cover) units(m *Running) (units, part float64, ok bool) {
	if m.Price <= 0 || m.CapacityType == spotCapacity || m.Idle && c.custom() || !c.Selector.Selects(m.Offering) {
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
		if c.Flexible == "" {
			return 1, 1, true
		}
		ratio := c.ratio(m.InstanceType)
		return ratio, 1, ratio > 0
	case CPUs:
		units = float64(m.VCPUs) / 1000
	case GiBs:
		units = float64(m.Memory) / (1 << 30)
	}
	part = min(1, units*c.List/m.Price)
	return units, part, part > 0
}

func (c *Cover) custom() bool { return c.tier == 2 || c.tier == 5 }
