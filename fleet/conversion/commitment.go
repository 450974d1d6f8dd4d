// SPDX-License-Identifier: Apache-2.0

package conversion

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/capacity/annotation"
	"github.com/autonode-io/autonode/fleet/division"
	"github.com/autonode-io/autonode/internal/message"
)

// maxSpend bounds a commitment, in US dollars an hour or in units.
const maxSpend = 1e9

// Rates are those that were read from a commitment's ratesFrom, by the commitment's name.
type Rates map[string]map[string]float64

// CommitmentsAt returns an account's commitments that are in their term at a time, and the entries that can't be read. rates come from
// ConfigMaps. A commitment is left out unless the entry is the rate of one type, or a list price: then it covers nothing by that.
func CommitmentsAt(
	spec *autonodev1alpha1.CapacityAccountSpec, rates Rates, now time.Time,
) (commitments []division.Commitment, unusable []autonodev1alpha1.UnusableEntry) {
	for i := range spec.Commitments {
		r, usable := readCommitment(&spec.Commitments[i], rates[spec.Commitments[i].Name], now)
		if usable {
			commitments = append(commitments, r.Commitment)
		}
		unusable = append(unusable, r.unusable...)
	}
	for i := range spec.Reservations {
		r := &spec.Reservations[i]
		if _, err := reservationPrice(r.Price); err != nil {
			unusable = append(unusable, autonodev1alpha1.UnusableEntry{
				Field: fmt.Sprintf("reservations[%s].price", r.ID), Message: err.Error() + "; what its machines cost on demand is billed",
			})
		}
	}
	return commitments, unusable
}

// malformed quotes a text that is too long or not as wanted.
func malformed(text, want string) error {
	return fmt.Errorf("%q is not %s", message.Cut(text, maxNumber), want)
}

func notAPrice(text string) error {
	return malformed(text, `an amount in US dollars an hour, such as "12.50"`)
}

// reservationPrice parses a reservation's price; nil for none.
func reservationPrice(text string) (*float64, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // no price is no error
	}
	value, ok := annotation.ParseDecimal(text)
	if !ok || value > annotation.MaxPrice {
		return nil, notAPrice(text)
	}
	return &value, nil
}

// commitmentReader reads a commitment. broken: it can't be used.
type commitmentReader struct {
	division.Commitment
	unusable []autonodev1alpha1.UnusableEntry
	broken   bool
}

// note records an entry that can't be read.
func (r *commitmentReader) note(field string, err error) {
	field = fmt.Sprintf("commitments[%s].%s", r.Name, field)
	r.unusable = append(r.unusable, autonodev1alpha1.UnusableEntry{Field: field, Message: err.Error()})
}

// problem records one without which the commitment can't be used. Only the first of these counts.
func (r *commitmentReader) problem(field string, err error) {
	if !r.broken {
		r.note(field, err)
	}
	r.broken = true
}

// price of a field in US dollars an hour.
func (r *commitmentReader) price(field, text string) float64 {
	value, ok := annotation.ParseDecimal(text)
	if !ok || value > maxSpend {
		r.problem(field, notAPrice(text))
	}
	return value
}

// positive parses the decimals of a map, and calls bad with the others.
func positive(texts map[string]string, numbers map[string]float64, bad func(name, text string)) {
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		value, ok := annotation.ParseDecimal(texts[name])
		if numbers[name] = value; !ok || value == 0 || value > maxSpend {
			delete(numbers, name)
			bad(message.Cut(name, maxNumber), texts[name])
		}
	}
}

// readCommitment reads one, and reports whether it is in its term, has an amount and can be used.
func readCommitment(c *autonodev1alpha1.CapacityCommitment, rates map[string]float64, now time.Time) (r *commitmentReader, usable bool) {
	r = &commitmentReader{Commitment: division.Commitment{Name: c.Name, Kind: division.Kind(c.Kind), Selector: division.Selector(c.Selector)}}
	for i, at := range []*scalar.Time{c.Starts, c.Ends} {
		if at != nil && at.Malformed != "" {
			r.problem([]string{"starts", "ends"}[i], malformed(at.Malformed, "a time in RFC 3339, such as 2026-12-01T06:00:00Z"))
			return r, false
		}
	}
	if c.Starts.At().After(now) || c.Ends != nil && !c.Ends.At().After(now) {
		return r, false
	}
	if c.DiscountPercent != nil {
		percent, ok := annotation.ParseDecimal(c.DiscountPercent.String())
		if !ok || percent >= 100 {
			r.problem("discountPercent", malformed(c.DiscountPercent.String(), `a percentage from 0 to less than 100, such as "27.5"`))
		}
		r.Discount = percent / 100
	}
	amount := 0.0
	switch r.Kind {
	case division.CommittedUse:
		r.CPU, r.Memory = r.amount("cpu", c.CPU, 1), r.amount("memory", c.Memory, 1<<30)
		amount = r.CPU.Amount + r.Memory.Amount
	case division.SavingsPlan:
		r.plan(c, rates)
		amount = r.HourlySpend
	default:
		r.reserved(c)
		amount = r.Instances
	}
	return r, amount > 0 && !r.broken
}

// plan reads a savings plan. A type whose rate can't be read isn't covered.
func (r *commitmentReader) plan(c *autonodev1alpha1.CapacityCommitment, rates map[string]float64) {
	r.EC2Instance = c.Scope == autonodev1alpha1.ScopeEC2Instance
	r.HourlySpend = r.price("hourlySpend", c.HourlySpend)
	if len(c.Rates) > 0 || c.RatesFrom != nil {
		r.Rates = make(map[string]float64, len(c.Rates)+len(rates))
		maps.Copy(r.Rates, rates)
		positive(c.Rates, r.Rates, func(name, text string) { r.note("rates", fmt.Errorf("%w; %s isn't covered", notAPrice(text), name)) })
	}
}

// reserved reads a ReservedInstance or an AzureReservation.
func (r *commitmentReader) reserved(c *autonodev1alpha1.CapacityCommitment) {
	r.InstanceType, r.SizeFlexible = c.InstanceType, c.SizeFlexibility != autonodev1alpha1.SizeFlexibilityOff
	r.Instances = float64(ptr.Deref(c.Instances, 0))
	if c.Price != "" {
		r.Price = ptr.To(r.price("price", c.Price))
	}
	if len(c.Ratios) > 0 {
		r.Ratios = map[string]float64{}
		positive(c.Ratios, r.Ratios, func(name, text string) {
			r.problem("ratios", fmt.Errorf("%q of %s is not a positive number, such as \"2\"", message.Cut(text, maxNumber), name))
		})
		if _, listed := c.Ratios[c.InstanceType]; !listed {
			r.problem("ratios", fmt.Errorf("lacks instanceType %s", message.Cut(c.InstanceType, maxNumber)))
		}
	}
	if err := r.CheckSize(); err != nil {
		r.problem("instanceType", err)
	}
}

// amount reads a committed amount, in this many units of its quantity.
func (r *commitmentReader) amount(field string, a *autonodev1alpha1.CapacityCommittedAmount, unit float64) (read division.CommittedAmount) {
	if a == nil {
		return read
	}
	quantity, err := a.Amount.Parse()
	if err == nil && (quantity.Sign() < 0 || quantity.AsApproximateFloat64() > maxSpend*unit) {
		err = errors.New("is out of range")
	}
	if err != nil {
		r.problem(field+".amount", fmt.Errorf("%q %w", message.Cut(a.Amount.String(), maxNumber), err))
		return read
	}
	read.Amount = quantity.AsApproximateFloat64() / unit
	read.Price, read.List = r.price(field+".price", a.Price), r.price(field+".listPrice", a.ListPrice)
	if read.List == 0 && !r.broken {
		r.note(field+".listPrice", fmt.Errorf("%w; nothing is covered", notAPrice(a.ListPrice)))
	}
	return read
}

// Leased returns a commitment for a lease; c is what was read of it.
func Leased(spec *autonodev1alpha1.CapacityCommitment, c *division.Commitment) autonodev1alpha1.LeasedCommitment {
	leased := autonodev1alpha1.LeasedCommitment{CapacityCommitment: *spec.DeepCopy()}
	leased.Starts, leased.Ends = nil, nil
	if c.Rates != nil {
		leased.Rates, leased.RatesFrom, leased.PackedRates = nil, nil, packed(c.Rates)
		if leased.DiscountPercent == nil {
			leased.DiscountPercent = ptr.To(scalar.Number(0)) // as without one, and an entry needs rates or one
		}
	}
	return leased
}

// SetOthers sets the unused part of a measure that other clusters may use, rounded down to the precision of prices.
func SetOthers(c *autonodev1alpha1.LeasedCommitment, measure division.Measure, amount float64) {
	to := &c.Others
	if measure == division.GiBs {
		to = &c.OthersMemory
	}
	*to = decimal(math.Floor(amount*1e6) / 1e6)
}

// LeasedMachines returns the machines beside commitments that these may cover, for a lease.
func LeasedMachines(c *division.Commitments) []autonodev1alpha1.CommittedMachines {
	groups := slices.SortedFunc(slices.Values(c.Groups), func(a, b division.Group) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), a.Compare(b.Offering), cmp.Compare(a.Price, b.Price))
	})
	var list []autonodev1alpha1.CommittedMachines
	for _, g := range groups {
		if g.Count > 0 && c.Covered(&g.Priced) && len(list) < autonodev1alpha1.MaxCommittedMachines {
			list = append(list, autonodev1alpha1.CommittedMachines{
				InstanceType: g.InstanceType, Zone: g.Zone, CapacityType: g.CapacityType, Catalog: g.Catalog,
				Price: decimal(math.Round(g.Price*1e9) / 1e9), // a forged one may have hundreds of digits
				VCPUs: g.VCPUs, Memory: g.Memory, Reserved: g.Idle, Count: g.Count,
			})
		}
	}
	return list
}

// Committed are the commitments of a lease, the machines of all clusters, and the number of this cluster's among those.
type Committed struct {
	Commitments []division.Commitment
	Machines    []division.Group
	Counted     map[capacity.Offering]int64
}

// CommittedTo reads a lease's commitments. It leaves out those that can't be read.
func CommittedTo(l *autonodev1alpha1.CapacityLease) (all Committed) {
	for i := range l.Spec.Commitments {
		leased := &l.Spec.Commitments[i]
		r, usable := readCommitment(&leased.CapacityCommitment, nil, time.Time{})
		var err error
		if r.Rates, err = unpacked(leased.PackedRates); err != nil || !usable {
			continue
		}
		others, _ := annotation.ParseDecimal(leased.Others)
		othersMemory, _ := annotation.ParseDecimal(leased.OthersMemory)
		r.HourlySpend, r.Instances = max(0, r.HourlySpend-others), max(0, r.Instances-others)
		r.CPU.Amount, r.Memory.Amount = max(0, r.CPU.Amount-others), max(0, r.Memory.Amount-othersMemory)
		all.Commitments = append(all.Commitments, r.Commitment)
	}
	for i := range l.Spec.Machines {
		m := &l.Spec.Machines[i]
		g := division.Group{Count: m.Count, Idle: m.Reserved}
		g.Offering = capacity.Offering{InstanceType: m.InstanceType, Zone: m.Zone, CapacityType: m.CapacityType, Catalog: m.Catalog}
		g.Price, g.VCPUs, g.Memory = annotation.ParsePrice(m.Price), m.VCPUs, m.Memory
		all.Machines = append(all.Machines, g)
	}
	all.Counted = make(map[capacity.Offering]int64, len(l.Spec.Counted))
	for _, m := range l.Spec.Counted {
		all.Counted[capacity.Offering{InstanceType: m.InstanceType, Zone: m.Zone, CapacityType: m.CapacityType, Catalog: m.Catalog}] += m.Count
	}
	return all
}

// decimal writes a number; empty for zero.
func decimal(value float64) string {
	if !(value > 0) {
		return ""
	}
	return strconv.FormatFloat(value, 'f', -1, 64)
}
