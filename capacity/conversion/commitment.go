// SPDX-License-Identifier: Apache-2.0

package conversion

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/message"
)

// maxSpend bounds a commitment, in US dollars an hour or in units.
const maxSpend = 1e9

// Rates are those that were read from a commitment's ratesFrom, by the commitment's name.
type Rates map[string]map[string]float64

// CommitmentsAt returns an account's commitments that are in their term at a time, and those that can't be read. rates come from
// ConfigMaps.
func CommitmentsAt(spec *autonodev1alpha1.CapacityAccountSpec, rates Rates, now time.Time) (commitments []capacity.Commitment, unusable []autonodev1alpha1.UnusableEntry) {
	for i := range spec.Commitments {
		c := &spec.Commitments[i]
		r := &commitmentReader{Commitment: capacity.Commitment{Name: c.Name, Kind: capacity.Kind(c.Kind), Selector: selector(&c.Selector)}}
		runs := r.read(c, rates[c.Name], now)
		if r.field != "" {
			unusable = append(unusable, autonodev1alpha1.UnusableEntry{Field: fmt.Sprintf("commitments[%s].%s", c.Name, r.field), Message: r.err.Error()})
		}
		if runs && r.field == "" {
			commitments = append(commitments, r.Commitment)
		}
	}
	for i := range spec.Reservations {
		if text := spec.Reservations[i].Price; text != "" && price(text) == 0 {
			unusable = append(unusable, autonodev1alpha1.UnusableEntry{
				Field: fmt.Sprintf("reservations[%s].price", spec.Reservations[i].ID), Message: notAPrice(text).Error() + "; what its machines cost on demand is billed",
			})
		}
	}
	return commitments, unusable
}

func notAPrice(text string) error {
	return fmt.Errorf("%q is not an amount in US dollars an hour, such as \"12.50\"", message.Cut(text, maxNumber))
}

// commitmentReader reads a commitment. field is the first one that can't be read, relative to the commitment.
type commitmentReader struct {
	capacity.Commitment
	field string
	err   error
}

func (r *commitmentReader) problem(field string, err error) {
	if r.field == "" {
		r.field, r.err = field, err
	}
}

func (r *commitmentReader) price(field, text string) float64 {
	value, ok := decimal(text)
	if !ok || value > maxSpend {
		r.problem(field, notAPrice(text))
		return 0
	}
	return value
}

// read reads all fields, and returns whether anything is committed at a time.
func (r *commitmentReader) read(c *autonodev1alpha1.CapacityCommitment, rates map[string]float64, now time.Time) (runs bool) {
	for _, term := range []struct {
		field string
		at    *scalar.Time
	}{{"starts", c.Starts}, {"ends", c.Ends}} {
		if term.at != nil && term.at.Malformed != "" {
			r.problem(term.field, fmt.Errorf("%q is not a time in RFC 3339, such as 2026-12-01T06:00:00Z", message.Cut(term.at.Malformed, maxNumber)))
			return false
		}
	}
	if c.Starts.At().After(now) || c.Ends != nil && !c.Ends.At().After(now) {
		return false
	}
	if c.DiscountPercent != nil {
		percent, ok := decimal(c.DiscountPercent.String())
		if !ok || percent >= 100 {
			r.problem("discountPercent", fmt.Errorf("%q is not a percentage from 0 to less than 100, such as \"27.5\"", message.Cut(c.DiscountPercent.String(), maxNumber)))
		}
		r.Discount = percent / 100
	}
	switch r.Kind {
	case capacity.CommittedUse:
		r.CPU, r.Memory = r.amount("cpu", c.CPU, 1), r.amount("memory", c.Memory, 1<<30)
		return r.CPU.Amount > 0 || r.Memory.Amount > 0
	case capacity.ReservedInstance, capacity.AzureReservation:
		r.InstanceType, r.SizeFlexible = c.InstanceType, c.SizeFlexibility != autonodev1alpha1.SizeFlexibilityOff
		for _, name := range slices.Sorted(maps.Keys(c.Ratios)) {
			if r.Ratios == nil {
				r.Ratios = map[string]float64{}
			}
			ratio, ok := decimal(c.Ratios[name])
			if !ok || ratio == 0 || ratio > maxSpend {
				r.problem("ratios", fmt.Errorf("%q of %s is not a positive number, such as \"2\"", message.Cut(c.Ratios[name], maxNumber), message.Cut(name, maxNumber)))
			}
			r.Ratios[name] = ratio
		}
		if _, own := r.Ratios[c.InstanceType]; len(r.Ratios) > 0 && !own {
			r.problem("ratios", fmt.Errorf("lacks instanceType %s", message.Cut(c.InstanceType, maxNumber)))
		}
	case capacity.SavingsPlan:
		r.EC2Instance = c.Scope == autonodev1alpha1.ScopeEC2Instance
		if len(c.Rates) > 0 || c.RatesFrom != nil {
			r.Rates = make(map[string]float64, len(c.Rates)+len(rates))
			maps.Copy(r.Rates, rates)
			for _, name := range slices.Sorted(maps.Keys(c.Rates)) {
				r.Rates[name] = r.price("rates", c.Rates[name])
			}
		}
	}
	if c.Price != "" {
		r.Price = r.price("price", c.Price)
	}
	if c.Instances != nil {
		r.Machines = int64(*c.Instances)
	} else {
		r.HourlySpend = r.price("hourlySpend", c.HourlySpend)
	}
	return r.Machines > 0 || r.HourlySpend > 0
}

// amount reads one of a CommittedUse, of which a unit has this size.
func (r *commitmentReader) amount(field string, a *autonodev1alpha1.CapacityCommittedAmount, unit float64) capacity.CommittedAmount {
	if a == nil {
		return capacity.CommittedAmount{}
	}
	quantity, err := a.Amount.Parse()
	if err == nil && (quantity.Sign() < 0 || quantity.AsApproximateFloat64() > maxSpend*unit) {
		err = errors.New("is out of range")
	}
	if err != nil {
		r.problem(field+".amount", fmt.Errorf("%q %w", message.Cut(a.Amount.String(), maxNumber), err))
		return capacity.CommittedAmount{}
	}
	return capacity.CommittedAmount{
		Amount: quantity.AsApproximateFloat64() / unit, Price: r.price(field+".price", a.Price), List: r.price(field+".listPrice", a.ListPrice),
	}
}

// unitsOf is the field that has the unused part of a commitment.
func unitsOf(c *autonodev1alpha1.LeasedCommitment, measure capacity.Measure, flexible bool) *string {
	switch {
	case measure == capacity.CPUs:
		return &c.CPU
	case measure == capacity.GiBs:
		return &c.Memory
	case measure == capacity.Money:
		return &c.HourlySpend
	case flexible:
		return &c.Units
	}
	return &c.Instances
}

// Leased writes a cluster's part of a commitment.
func Leased(c *capacity.Cover, left, more float64) autonodev1alpha1.LeasedCommitment {
	leased := autonodev1alpha1.LeasedCommitment{
		Name: c.Name, Kind: autonodev1alpha1.CommitmentKind(c.Flexible),
		Selector: autonodev1alpha1.CapacitySelector{InstanceTypes: c.Selector.InstanceTypes, Catalogs: c.Selector.Catalogs, Zones: c.Selector.Zones, CapacityTypes: c.Selector.CapacityTypes},
		Rates:    texts(c.Rates), Ratios: texts(c.Ratios),
		Uncovered: positive(more), Displaced: positive(c.Displaced), Gained: positive(c.Gained), Discount: positive(c.Discount), ListPrice: positive(c.List),
	}
	if c.Flexible != "" {
		leased.InstanceType = c.InstanceType
	}
	*unitsOf(&leased, c.Measure, c.Flexible != "") = number(left)
	return leased
}

func number(value float64) string { return strconv.FormatFloat(value, 'f', -1, 64) }

func positive(value float64) string {
	if !(value > 0) {
		return ""
	}
	return number(value)
}

func texts(values map[string]float64) map[string]string {
	if values == nil {
		return nil
	}
	texts := make(map[string]string, len(values))
	for name, value := range values {
		texts[name] = number(value)
	}
	return texts
}

// numbers is the reverse of texts. Malformed ones are left out.
func numbers(texts map[string]string) map[string]float64 {
	if len(texts) == 0 {
		return nil
	}
	values := make(map[string]float64, len(texts))
	for name, text := range texts {
		if value, ok := decimal(text); ok {
			values[name] = value
		}
	}
	return values
}

// Covers returns the commitments of its account that the cluster of a lease may use: see capacity.Resume. A malformed one is left out.
func Covers(l *autonodev1alpha1.CapacityLease) []capacity.Cover {
	var covers []capacity.Cover
	for i := range l.Spec.Commitments {
		leased := &l.Spec.Commitments[i]
		cover := capacity.Cover{Name: leased.Name, Selector: selector(&leased.Selector), Rates: numbers(leased.Rates), Ratios: numbers(leased.Ratios), InstanceType: leased.InstanceType}
		if leased.Units != "" {
			cover.Flexible = capacity.Kind(leased.Kind)
		}
		set := 0
		for _, measure := range []capacity.Measure{capacity.Money, capacity.Instances, capacity.CPUs, capacity.GiBs} {
			if left, ok := decimal(*unitsOf(leased, measure, cover.Flexible != "")); ok {
				cover.Measure, cover.Left = measure, left
				set++
			}
		}
		discount, ok := decimal(leased.Discount)
		if set != 1 || leased.Discount != "" && !ok {
			continue
		}
		cover.Discount = min(discount, 1)
		cover.Uncovered, _ = decimal(leased.Uncovered)
		cover.Displaced, _ = decimal(leased.Displaced)
		cover.Gained, _ = decimal(leased.Gained)
		cover.List, _ = decimal(leased.ListPrice)
		covers = append(covers, cover)
	}
	return covers
}
