// SPDX-License-Identifier: Apache-2.0

package v1alpha1

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

	karpenterv1alpha1 "github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/capacity/cost"
	"github.com/autonode-io/autonode/message"
)

// Bounds of what a Karpenter reports. They keep sums over all clusters of an account within 64 bits.
const (
	// MaxRequests is the number of requests in a report.
	MaxRequests = 32
	// MaxRequestedLaunches is the number of launches of all requests in a report.
	MaxRequestedLaunches = 500
	// MaxUnavailable is the number of unavailable offerings in a report.
	MaxUnavailable = 64
	// MaxCharge is the most that one machine takes of a pool, in the pool's unit: 64 TiB of memory.
	MaxCharge = int64(1) << 46
	// MaxAmount is the largest amount of a pool.
	MaxAmount = int64(1) << 54
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

// ReservationPool is the name of a reservation's pool.
func ReservationPool(id string) string { return "reservation/" + id }

// QuotaPool is the name of the pool of one resource of a quota, which is named as in CapacityAmounts.
func QuotaPool(quota, resource string) string { return "quota/" + quota + "/" + resource }

// LimitPool is the name of the pool of a cluster's own limit of a resource.
func LimitPool(resource string) string { return "limit/" + resource }

// Capacity returns the selector as package capacity has it.
func (s *CapacitySelector) Capacity() capacity.Selector {
	return capacity.Selector{InstanceTypes: s.InstanceTypes, Catalogs: s.Catalogs, Zones: s.Zones, CapacityTypes: s.CapacityTypes}
}

// ReservationsAt returns the reservations at a time, as package cost has them.
func (s *CapacityAccountSpec) ReservationsAt(now time.Time) []cost.Reservation {
	reservations := make([]cost.Reservation, len(s.Reservations))
	for i := range s.Reservations {
		r := &s.Reservations[i]
		reservations[i] = cost.Reservation{
			ID: r.ID, InstanceType: r.InstanceType, Zone: r.Zone, Count: int64(r.Count), Expired: r.Expires != nil && !r.Expires.At().After(now),
		}
	}
	return reservations
}

// CommitmentsAt returns the commitments that are in their term at a time, and those that can't be read.
func (s *CapacityAccountSpec) CommitmentsAt(now time.Time) (commitments []capacity.Commitment, unusable []UnusableEntry) {
	for i := range s.Commitments {
		c := &s.Commitments[i]
		commitment, runs, problem := c.at(now)
		if problem != nil {
			unusable = append(unusable, UnusableEntry{Field: fmt.Sprintf("commitments[%s].%s", c.Name, problem.Field), Message: problem.Message})
		}
		if runs {
			commitments = append(commitments, commitment)
		}
	}
	return commitments, unusable
}

// at returns the commitment as package capacity has it, and whether it is in its term. A problem's field is relative to it.
func (c *CapacityCommitment) at(now time.Time) (commitment capacity.Commitment, runs bool, problem *UnusableEntry) {
	commitment = capacity.Commitment{Name: c.Name, Selector: c.Selector.Capacity()}
	for _, term := range []struct {
		field string
		at    *scalar.Time
	}{{"starts", c.Starts}, {"ends", c.Ends}} {
		if term.at != nil && term.at.Malformed != "" {
			return commitment, false, &UnusableEntry{Field: term.field, Message: fmt.Sprintf(
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
			return commitment, false, &UnusableEntry{Field: "hourlySpend", Message: fmt.Sprintf(
				"%q is not an amount in US dollars an hour, such as \"12.50\"", message.Cut(c.HourlySpend, maxNumber))}
		}
		commitment.HourlySpend = spend
	}
	if c.DiscountPercent != nil {
		percent, ok := decimal(c.DiscountPercent.String())
		if !ok || percent >= 100 {
			return commitment, false, &UnusableEntry{Field: "discountPercent", Message: fmt.Sprintf(
				"%q is not a percentage from 0 to less than 100, such as \"27.5\"", message.Cut(c.DiscountPercent.String(), maxNumber))}
		}
		commitment.Discount = percent / 100
	}
	return commitment, commitment.Machines > 0 || commitment.HourlySpend > 0, nil
}

// Rule says which machines take from the pool.
func (p *LeasedPool) Rule() capacity.Rule {
	return capacity.Rule{Pool: p.Name, Resource: capacity.Resource(p.Resource), Selector: p.Selector.Capacity(), Reservation: p.Reservation}
}

// Rules say which machines take from which pool.
func (l *CapacityLease) Rules() []capacity.Rule {
	rules := make([]capacity.Rule, len(l.Spec.Pools))
	for i := range l.Spec.Pools {
		rules[i] = l.Spec.Pools[i].Rule()
	}
	return rules
}

// Lease returns the lease without its report, which is hostile to whoever didn't write it: see BoundedReport. Its ID is the
// object's UID.
func (l *CapacityLease) Lease() capacity.Lease {
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

// UpTo is about how much the cluster gets if it requests more.
func (l *CapacityLease) UpTo() capacity.Amounts {
	upTo := capacity.Amounts{}
	for _, pool := range l.Spec.Pools {
		if pool.UpTo > 0 {
			upTo[pool.Name] = pool.UpTo
		}
	}
	return upTo
}

// Commitments returns the account's commitments, what is unused of each, and how much more of it running machines would
// use, by name: see capacity.Resume. A malformed one is left out.
func (l *CapacityLease) Commitments() (commitments []capacity.Commitment, unused, uncovered map[string]float64) {
	unused, uncovered = map[string]float64{}, map[string]float64{}
	for i := range l.Spec.Commitments {
		leased := &l.Spec.Commitments[i]
		c := capacity.Commitment{Name: leased.Name, Selector: leased.Selector.Capacity()}
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

// SetReport writes what a Holder reports, within the bounds. What doesn't fit is left out: the newest requests.
func (s *CapacityLeaseStatus) SetReport(report capacity.Report) {
	s.AcknowledgedSequence, s.Held, s.Spent, s.Requests = report.Sequence, poolAmounts(report.Held), poolAmounts(report.Spent), nil
	launches := int64(0)
	for _, request := range report.Requests {
		count := min(request.Count, MaxRequestedLaunches-launches)
		if count <= 0 || len(s.Requests) == MaxRequests {
			break
		}
		launches += count
		s.Requests = append(s.Requests, CapacityRequest{Charges: poolAmounts(request.Charges), Count: count})
	}
}

// poolAmounts are sorted by pool.
func poolAmounts(amounts capacity.Amounts) []PoolAmount {
	var list []PoolAmount
	for _, pool := range slices.Sorted(maps.Keys(amounts)) {
		if amounts[pool] > 0 {
			list = append(list, PoolAmount{Pool: pool, Amount: amounts[pool]})
		}
	}
	return list
}

// BoundedReport returns the report of a program that isn't trusted. Only amounts of pools that the lease names and within
// the bounds are in it.
func (l *CapacityLease) BoundedReport() capacity.Report {
	named := make(map[string]bool, len(l.Spec.Pools))
	for _, pool := range l.Spec.Pools {
		named[pool.Name] = true
	}
	bounded := func(list []PoolAmount, most int64) capacity.Amounts {
		amounts := capacity.Amounts{}
		for _, entry := range list {
			if named[entry.Pool] && entry.Amount > 0 {
				amounts[entry.Pool] = max(amounts[entry.Pool], min(entry.Amount, most))
			}
		}
		return amounts
	}
	report := capacity.Report{Sequence: l.Status.AcknowledgedSequence, Held: bounded(l.Status.Held, MaxAmount), Spent: bounded(l.Status.Spent, MaxAmount)}
	launches := int64(0)
	for _, request := range l.Status.Requests[:min(len(l.Status.Requests), MaxRequests)] {
		count := min(request.Count, MaxRequestedLaunches-launches)
		charges := bounded(request.Charges, MaxCharge)
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
		Zone:         cmp.Or(labels[corev1.LabelTopologyZone], annotations[karpenterv1alpha1.OfferingZoneAnnotation]),
		CapacityType: cmp.Or(labels[capacityTypeLabel], onDemand),
		Reservation:  labels[karpenterv1alpha1.ReservationIDLabel],
		Catalog:      karpenterv1alpha1.CatalogOf(annotations[karpenterv1alpha1.TemplateSourceAnnotation]),
	}
	size := annotations[karpenterv1alpha1.MachineSizeAnnotation]
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
		amount = min(amount, MaxCharge)
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
	MachineLabels      = []string{corev1.LabelInstanceTypeStable, corev1.LabelTopologyZone, capacityTypeLabel, karpenterv1alpha1.ReservationIDLabel}
	MachineAnnotations = []string{karpenterv1alpha1.OfferingZoneAnnotation, karpenterv1alpha1.MachineSizeAnnotation, karpenterv1alpha1.TemplateSourceAnnotation}
)
