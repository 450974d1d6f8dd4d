// SPDX-License-Identifier: Apache-2.0

// Package conversion reads CapacityAccounts, CapacityLeases and Machines in the terms of packages capacity and cost, and writes back what a
// Karpenter reports. Operator and Karpenter both use it, so that they count alike.
package conversion

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/capacity/cost"
	"github.com/autonode-io/autonode/message"
)

const (
	// capacityTypeLabel is Karpenter's label of a machine's capacity type, and onDemand its value by default.
	capacityTypeLabel = "karpenter.sh/capacity-type"
	onDemand          = "on-demand"
	// maxPrice bounds a machine's price in US dollars an hour, so that sums of forged ones stay numbers.
	maxPrice = 1e6
	// maxNumber is how much of a malformed number a message repeats.
	maxNumber = 32
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
		}
	}
	return reservations
}

// CommitmentsAt returns an account's commitments that are in their term at a time, and those that can't be read.
func CommitmentsAt(spec *autonodev1alpha1.CapacityAccountSpec, now time.Time) (commitments []capacity.Commitment, unusable []autonodev1alpha1.UnusableEntry) {
	for i := range spec.Commitments {
		c := &spec.Commitments[i]
		commitment, runs, problem := commitmentAt(c, now)
		if problem != nil {
			unusable = append(unusable, autonodev1alpha1.UnusableEntry{Field: fmt.Sprintf("commitments[%s].%s", c.Name, problem.Field), Message: problem.Message})
		}
		if runs {
			commitments = append(commitments, commitment)
		}
	}
	return commitments, unusable
}

// commitmentAt returns the commitment as package capacity has it, and whether it is in its term. A problem's field is relative to it.
func commitmentAt(c *autonodev1alpha1.CapacityCommitment, now time.Time) (commitment capacity.Commitment, runs bool, problem *autonodev1alpha1.UnusableEntry) {
	commitment = capacity.Commitment{Name: c.Name, Selector: selector(&c.Selector)}
	for _, term := range []struct {
		field string
		at    *scalar.Time
	}{{"starts", c.Starts}, {"ends", c.Ends}} {
		if term.at != nil && term.at.Malformed != "" {
			return commitment, false, &autonodev1alpha1.UnusableEntry{Field: term.field, Message: fmt.Sprintf(
				"%q is not a time in RFC 3339, such as 2026-12-01T06:00:00Z", message.Cut(term.at.Malformed, maxNumber))}
		}
	}
	if c.Starts.At().After(now) || c.Ends != nil && !c.Ends.At().After(now) {
		return commitment, false, nil
	}
	if c.Instances != nil {
		commitment.Machines = int64(*c.Instances)
	} else {
		spend, ok := decimal(c.HourlySpend)
		if !ok || spend > 1e9 {
			return commitment, false, &autonodev1alpha1.UnusableEntry{Field: "hourlySpend", Message: fmt.Sprintf(
				"%q is not an amount in US dollars an hour, such as \"12.50\"", message.Cut(c.HourlySpend, maxNumber))}
		}
		commitment.HourlySpend = spend
	}
	if c.DiscountPercent != nil {
		percent, ok := decimal(c.DiscountPercent.String())
		if !ok || percent >= 100 {
			return commitment, false, &autonodev1alpha1.UnusableEntry{Field: "discountPercent", Message: fmt.Sprintf(
				"%q is not a percentage from 0 to less than 100, such as \"27.5\"", message.Cut(c.DiscountPercent.String(), maxNumber))}
		}
		commitment.Discount = percent / 100
	}
	return commitment, commitment.Machines > 0 || commitment.HourlySpend > 0, nil
}

// Rule says which machines take from a pool.
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
	amounts, granted := capacity.Amounts{}, capacity.Amounts{}
	for _, pool := range l.Spec.Pools {
		if pool.Amount > 0 {
			amounts[pool.Name] = pool.Amount
		}
		if pool.Granted > 0 {
			granted[pool.Name] = pool.Granted
		}
	}
	return capacity.Lease{ID: string(l.UID), Sequence: l.Spec.Sequence, Amounts: amounts, Granted: granted}
}

// UpTo is about how much the cluster of a lease gets if it requests more.
func UpTo(l *autonodev1alpha1.CapacityLease) capacity.Amounts {
	upTo := capacity.Amounts{}
	for _, pool := range l.Spec.Pools {
		if pool.UpTo > 0 {
			upTo[pool.Name] = pool.UpTo
		}
	}
	return upTo
}

// Commitments returns the commitments of a lease's account, what is unused of each, and how much more of it running machines would
// use, by name: see capacity.Resume. A malformed one is left out.
func Commitments(l *autonodev1alpha1.CapacityLease) (commitments []capacity.Commitment, unused, uncovered map[string]float64) {
	unused, uncovered = map[string]float64{}, map[string]float64{}
	for i := range l.Spec.Commitments {
		leased := &l.Spec.Commitments[i]
		c := capacity.Commitment{Name: leased.Name, Selector: selector(&leased.Selector)}
		spend, spendOK := decimal(leased.HourlySpend)
		machines, machinesOK := decimal(leased.Instances)
		discount, discountOK := decimal(cmp.Or(leased.Discount, "0"))
		if !discountOK || spendOK == machinesOK {
			continue
		}
		c.HourlySpend, c.Discount, unused[c.Name] = spend, min(discount, 1), spend
		if machinesOK {
			// Only its kind matters: the rest is unused.
			c.Machines, unused[c.Name] = 1, machines
		}
		uncovered[c.Name], _ = decimal(leased.Uncovered)
		commitments = append(commitments, c)
	}
	return commitments, unused, uncovered
}

// decimal parses a number that is not negative.
func decimal(text string) (float64, bool) {
	value, err := strconv.ParseFloat(text, 64)
	if err != nil || value < 0 || math.IsInf(value, 0) || math.IsNaN(value) {
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
// count by it. A size that can't be read, or that the Machine lacks because an older Karpenter made it, is zero. The price of an
// on-demand machine is that on demand, too.
func MachineOf(object metav1.Object) (m capacity.Machine, prices MachinePrices) {
	labels, annotations := object.GetLabels(), object.GetAnnotations()
	m.Offering = capacity.Offering{
		InstanceType: labels[corev1.LabelInstanceTypeStable],
		Zone:         cmp.Or(labels[corev1.LabelTopologyZone], annotations[v1alpha1.OfferingZoneAnnotation]),
		CapacityType: cmp.Or(labels[capacityTypeLabel], onDemand),
		Reservation:  labels[v1alpha1.ReservationIDLabel],
		Catalog:      v1alpha1.CatalogOf(annotations[v1alpha1.TemplateSourceAnnotation]),
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
