// SPDX-License-Identifier: Apache-2.0

// Package conversion reads CapacityAccounts, CapacityLeases and Machines in the terms of packages capacity and cost, and writes back what a
// Karpenter reports. Operator and Karpenter both use it, so that they count alike.
package conversion

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/capacity/cost"
)

const (
	// capacityTypeLabel is Karpenter's label of a machine's capacity type, and onDemand its value by default.
	capacityTypeLabel = "karpenter.sh/capacity-type"
	onDemand          = "on-demand"
	// maxPrice bounds a machine's price in US dollars an hour, so that sums of forged ones stay numbers.
	maxPrice = 1e6
	// maxNumber is how much of a malformed number a message repeats.
	maxNumber = 32
	// maxLabel and maxName are the most characters of a label's value, as zones are, and of an object's name.
	maxLabel, maxName = 63, 253
)

// selector returns a selector as package capacity has it.
func selector(s *autonodev1alpha1.CapacitySelector) capacity.Selector {
	return capacity.Selector{InstanceTypes: s.InstanceTypes, Catalogs: s.Catalogs, Zones: s.Zones, CapacityTypes: s.CapacityTypes}
}

// ReservationsAt returns an account's reservations at a time, as package cost has them.
func ReservationsAt(spec *autonodev1alpha1.CapacityAccountSpec, now time.Time) []cost.Reservation {
	reservations := make([]cost.Reservation, len(spec.Reservations))
	for i := range spec.Reservations {
		r := &spec.Reservations[i]
		reservations[i] = cost.Reservation{
			ID: r.ID, InstanceType: r.InstanceType, Zone: r.Zone, Count: int64(r.Count), Expired: r.Expires != nil && !r.Expires.At().After(now),
			Prepaid: r.Billing == autonodev1alpha1.BilledPrepaid,
		}
		reservations[i].Price, _ = reservationPrice(r.Price) // CommitmentsAt reports the error
	}
	return reservations
}

// Rule returns which machines take from a pool.
func Rule(p *autonodev1alpha1.LeasedPool) capacity.Rule {
	return capacity.Rule{Pool: p.Name, Resource: capacity.Resource(p.Resource), Selector: selector(&p.Selector), Reservation: p.Reservation}
}

// Rules say which machines take from which pool of a lease.
func Rules(l *autonodev1alpha1.CapacityLease) []capacity.Rule {
	rules := make([]capacity.Rule, len(l.Spec.Pools))
	for i := range l.Spec.Pools {
		rules[i] = Rule(&l.Spec.Pools[i])
	}
	return rules
}

// Lease returns a lease without its report, which is hostile to whoever didn't write it: see BoundedReport. Its ID is the
// object's UID.
func Lease(l *autonodev1alpha1.CapacityLease) capacity.Lease {
	lease := capacity.Lease{
		ID: string(l.UID), Sequence: l.Spec.Sequence, Amounts: capacity.Amounts{}, Granted: capacity.Amounts{}, UpTo: capacity.Amounts{}, Most: capacity.Amounts{},
		Reclaims: reclaims(l),
	}
	for i := range l.Spec.Pools {
		pool := &l.Spec.Pools[i]
		set := func(amounts capacity.Amounts, amount int64) {
			if amount > 0 {
				amounts[pool.Name] = amount
			}
		}
		set(lease.Amounts, pool.Amount)
		set(lease.Granted, pool.Granted)
		set(lease.UpTo, pool.UpTo)
		set(lease.Most, pool.Most)
	}
	return lease
}

// decimal parses a decimal number that isn't negative, in whichever notation but another base's.
func decimal(text string) (float64, bool) {
	value, err := strconv.ParseFloat(text, 64)
	if err != nil || value < 0 || math.IsInf(value, 0) || math.IsNaN(value) || strings.ContainsAny(text, "xX_") {
		return 0, false
	}
	return value, true
}

// SetReport writes what a Holder reports into a lease's status, within the bounds. What doesn't fit is left out: the newest requests.
func SetReport(s *autonodev1alpha1.CapacityLeaseStatus, report capacity.Report) {
	s.AcknowledgedSequence, s.Held, s.Spent, s.Requests = report.Sequence, poolAmounts(report.Held), poolAmounts(report.Spent), nil
	launches := int64(0)
	for _, request := range report.Requests {
		count := min(request.Count, autonodev1alpha1.MaxRequestedLaunches-launches)
		if count <= 0 || len(s.Requests) == autonodev1alpha1.MaxRequests {
			break
		}
		launches += count
		s.Requests = append(s.Requests, autonodev1alpha1.CapacityRequest{Charges: poolAmounts(request.Charges), Count: count})
	}
}

// poolAmounts are sorted by pool.
func poolAmounts(amounts capacity.Amounts) []autonodev1alpha1.PoolAmount {
	var list []autonodev1alpha1.PoolAmount
	for _, pool := range slices.Sorted(maps.Keys(amounts)) {
		if amounts[pool] > 0 {
			list = append(list, autonodev1alpha1.PoolAmount{Pool: pool, Amount: amounts[pool]})
		}
	}
	return list
}

// BoundedReport returns the report in a lease of a program that isn't trusted. Only amounts of pools that the lease names and within
// the bounds are in it.
func BoundedReport(l *autonodev1alpha1.CapacityLease) capacity.Report {
	named := make(map[string]bool, len(l.Spec.Pools))
	for _, pool := range l.Spec.Pools {
		named[pool.Name] = true
	}
	bounded := func(list []autonodev1alpha1.PoolAmount, most int64) capacity.Amounts {
		amounts := capacity.Amounts{}
		for _, entry := range list {
			if named[entry.Pool] && entry.Amount > 0 {
				amounts[entry.Pool] = max(amounts[entry.Pool], min(entry.Amount, most))
			}
		}
		return amounts
	}
	report := capacity.Report{Sequence: l.Status.AcknowledgedSequence, Held: bounded(l.Status.Held, autonodev1alpha1.MaxAmount), Spent: bounded(l.Status.Spent, autonodev1alpha1.MaxAmount)}
	launches := int64(0)
	for _, request := range l.Status.Requests[:min(len(l.Status.Requests), autonodev1alpha1.MaxRequests)] {
		count := min(request.Count, autonodev1alpha1.MaxRequestedLaunches-launches)
		charges := bounded(request.Charges, autonodev1alpha1.MaxCharge)
		if count <= 0 || len(charges) == 0 {
			continue
		}
		launches += count
		report.Requests = append(report.Requests, capacity.Request{Charges: charges, Count: count})
	}
	return report
}

// MachinePrices are list prices of a Machine in US dollars an hour; zero if one isn't known.
type MachinePrices struct {
	// List is the price of the Machine's offering, and OnDemand that of the same machine on demand when it was launched.
	List, OnDemand float64
}

// FormatMachineSize is the value of the annotation MachineSizeAnnotation: what a machine takes from pools, and its list prices. The
// price on demand is left out where it is the list price, or unknown.
func FormatMachineSize(m capacity.Machine, prices MachinePrices) string {
	text := "vcpus=" + strconv.FormatInt(m.VCPUs, 10) + ",memory=" + strconv.FormatInt(m.Memory, 10) + ",gpus=" + strconv.FormatInt(m.GPUs, 10) +
		",price=" + strconv.FormatFloat(prices.List, 'f', -1, 64)
	if prices.OnDemand > 0 && m.CapacityType != onDemand {
		text += ",onDemand=" + strconv.FormatFloat(prices.OnDemand, 'f', -1, 64)
	}
	return text
}

// MachineOf returns what a Machine takes from pools, by its labels and annotations, and its list prices. Operator and Karpenter both
// count by it. A size that is missing or can't be read is zero. The price of an on-demand machine is that on demand, too.
func MachineOf(object metav1.Object) (m capacity.Machine, prices MachinePrices) {
	labels, annotations := object.GetLabels(), object.GetAnnotations()
	m.Offering = capacity.Offering{
		InstanceType: labels[corev1.LabelInstanceTypeStable],
		Zone:         limited(cmp.Or(labels[corev1.LabelTopologyZone], annotations[v1alpha1.OfferingZoneAnnotation]), maxLabel),
		CapacityType: cmp.Or(labels[capacityTypeLabel], onDemand),
		Reservation:  labels[v1alpha1.ReservationIDLabel],
		Catalog:      limited(v1alpha1.CatalogOf(annotations[v1alpha1.TemplateSourceAnnotation]), maxName),
	}
	size := annotations[v1alpha1.MachineSizeAnnotation]
	if len(size) > 256 {
		return m, MachinePrices{}
	}
	for entry := range strings.SplitSeq(size, ",") {
		key, value, _ := strings.Cut(entry, "=")
		switch key {
		case "price":
			prices.List = price(value)
			continue
		case "onDemand":
			prices.OnDemand = price(value)
			continue
		}
		amount, err := strconv.ParseInt(value, 10, 64)
		if err != nil || amount < 0 {
			continue
		}
		amount = min(amount, autonodev1alpha1.MaxCharge)
		switch key {
		case "vcpus":
			m.VCPUs = amount
		case "memory":
			m.Memory = amount
		case "gpus":
			m.GPUs = amount
		}
	}
	if m.CapacityType == onDemand {
		prices.OnDemand = prices.List
	}
	return m, prices
}

// limited is a text of an annotation, which may have any length; empty if it is too long for what it is said to be.
func limited(text string, most int) string {
	if len(text) > most {
		return ""
	}
	return text
}

// price parses one; zero if it can't be that of a machine.
func price(text string) float64 {
	value, ok := decimal(text)
	if !ok || value > maxPrice {
		return 0
	}
	return value
}

// What MachineOf reads, for caches that keep nothing else of a Machine.
var (
	MachineLabels      = []string{corev1.LabelInstanceTypeStable, corev1.LabelTopologyZone, capacityTypeLabel, v1alpha1.ReservationIDLabel}
	MachineAnnotations = []string{v1alpha1.OfferingZoneAnnotation, v1alpha1.MachineSizeAnnotation, v1alpha1.TemplateSourceAnnotation}
)
