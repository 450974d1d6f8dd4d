// SPDX-License-Identifier: Apache-2.0

// Package cost sums up what the machines of an account cost. It is pure, without clients. What a commitment covers is decided by
// package capacity, as for the prices that Karpenter compares.
//
//	two of m5.large, on demand at 0.10 each, half covered by a commitment with a discount of 30 %:
//	list 0.20, committed 0.10 x 0.7 = 0.07, paid 0.10 + 0.07 = 0.17, saved by commitments 0.03
//
// Amounts are in the currency of the prices, per hour.
package cost

import (
	"cmp"
	"slices"

	"github.com/autonode-io/autonode/capacity"
)

// The capacity types that save something.
const (
	spot     = "spot"
	reserved = "reserved"
)

const onDemand = "on-demand"

// Key is what the machines of a row have in common.
type Key struct {
	Cluster, NodePool string
	capacity.Offering
}

func (k Key) compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Cluster, other.Cluster), cmp.Compare(k.NodePool, other.NodePool), cmp.Compare(k.InstanceType, other.InstanceType),
		cmp.Compare(k.Zone, other.Zone), cmp.Compare(k.CapacityType, other.CapacityType), cmp.Compare(k.Reservation, other.Reservation),
		cmp.Compare(k.Catalog, other.Catalog))
}

// Machines are a number of equal machines.
type Machines struct {
	Key
	// List is the list price of one. OnDemand is the list price of the same machine on demand; List is, for an on-demand machine. Zero if
	// it isn't known.
	List, OnDemand float64
	Count          int64
}

// Reservation of an account.
type Reservation struct {
	ID, InstanceType, Zone string
	Count                  int64
	// Expired: its machines are billed on demand.
	Expired bool
}

// Sums of a number of machines.
type Sums struct {
	Machines int64
	// Unpriced is how many of them have no known price. They count as costing nothing.
	Unpriced int64
	// OnDemand is what they would cost on demand: each as a node of its own that nothing is reserved or committed for.
	OnDemand float64
	// List is the sum of the prices of their offerings, and Paid what is really paid: commitments cover a part at their own price, which is
	// Committed. Paid doesn't have what is committed and unused.
	List, Paid, Committed float64
	// What each saves: OnDemand is Paid with all three.
	SavedBySpot, SavedByReservations, SavedByCommitments float64
}

// Saved is what is saved in all.
func (s *Sums) Saved() float64 { return s.OnDemand - s.Paid }

func (s *Sums) add(other *Sums) {
	s.Machines += other.Machines
	s.Unpriced += other.Unpriced
	s.OnDemand += other.OnDemand
	s.List += other.List
	s.Paid += other.Paid
	s.Committed += other.Committed
	s.SavedBySpot += other.SavedBySpot
	s.SavedByReservations += other.SavedByReservations
	s.SavedByCommitments += other.SavedByCommitments
}

// Row has the sums of the machines of a key.
type Row struct {
	Key
	Sums
}

// CommitmentUse is how much of a commitment is used. Amounts are in money an hour, or in machines.
type CommitmentUse struct {
	Name string
	// OfMachines: it is a number of machines. What an unused one costs isn't known.
	OfMachines              bool
	Committed, Used, Unused float64
}

// ReservationUse is how many machines of a reservation are used.
type ReservationUse struct {
	Reservation
	Used, Unused int64
}

// Report is what the machines of an account cost.
type Report struct {
	// Rows in the order of their keys.
	Rows  []Row
	Total Sums
	// Wasted is the money an hour that is committed and unused. It is paid beside Total.Paid.
	Wasted       float64
	Commitments  []CommitmentUse
	Reservations []ReservationUse
	// Applied are the commitments beside the machines.
	Applied *capacity.Commitments
}

// Of returns what machines cost. Machines of the same offering and price share equally what covers them, whichever cluster they are of.
func Of(machines []Machines, commitments []capacity.Commitment, reservations []Reservation) *Report {
	expired := map[string]bool{}
	for _, r := range reservations {
		expired[r.ID] = expired[r.ID] || r.Expired
	}
	parts := make([]part, len(machines))
	for i := range machines {
		parts[i] = priced(machines[i], expired)
	}
	report := &Report{}
	coverage := report.cover(parts, commitments)
	rows := map[Key]*Row{}
	for i := range parts {
		sums := parts[i].sums(coverage[i])
		key := parts[i].Key
		key.Offering = parts[i].billed
		if rows[key] == nil {
			rows[key] = &Row{Key: key}
		}
		rows[key].add(&sums)
	}
	for _, row := range rows {
		report.Rows = append(report.Rows, *row)
	}
	slices.SortFunc(report.Rows, func(a, b Row) int { return a.compare(b.Key) })
	for i := range report.Rows { // in their order, so that a sum doesn't depend on the machines'
		report.Total.add(&report.Rows[i].Sums)
	}
	report.use(parts, reservations)
	return report
}

// Group returns the sums of rows for which a function returns the same, in the order of those keys.
func (r *Report) Group(by func(Key) Key) []Row {
	var groups []Row
	at := map[Key]int{}
	for i := range r.Rows {
		key := by(r.Rows[i].Key)
		j, ok := at[key]
		if !ok {
			j = len(groups)
			at[key] = j
			groups = append(groups, Row{Key: key})
		}
		groups[j].add(&r.Rows[i].Sums)
	}
	slices.SortFunc(groups, func(a, b Row) int { return a.compare(b.Key) })
	return groups
}

// part is a number of equal machines with the prices that count.
type part struct {
	Machines
	// billed is the offering that is paid for.
	billed capacity.Offering
	// saver is the sum that has the difference of OnDemand and List.
	saver string
}

// priced settles the prices of machines. In an expired reservation, a machine is billed as one on demand.
func priced(m Machines, expired map[string]bool) part {
	p := part{Machines: m, billed: m.Offering, saver: m.CapacityType}
	if p.CapacityType == reserved && expired[p.Reservation] {
		p.billed.CapacityType, p.billed.Reservation = onDemand, ""
	}
	p.Count, p.List, p.OnDemand = max(p.Count, 0), max(p.List, 0), max(p.OnDemand, 0)
	switch {
	case p.OnDemand == 0 || p.CapacityType != spot && p.CapacityType != reserved:
		p.OnDemand = p.List
	case p.CapacityType == reserved && expired[p.Reservation]:
		p.List = p.OnDemand
	}
	return p
}

// covered is what commitments cover of a part, of which 1 is all, and what that costs of its list price.
type covered struct{ part, cost float64 }

// cover applies commitments, and returns what covers each part.
func (r *Report) cover(parts []part, commitments []capacity.Commitment) []covered {
	var groups []capacity.Group
	at := map[capacity.Running]int{}
	of := make([]int, len(parts))
	for i := range parts {
		running := capacity.Running{Offering: parts[i].billed, Price: parts[i].List}
		j, ok := at[running]
		if !ok {
			j = len(groups)
			at[running] = j
			groups = append(groups, capacity.Group{Running: running})
		}
		groups[j].Count += parts[i].Count
		of[i] = j
	}
	applied, shares := capacity.Apply(commitments, groups)
	r.Applied = applied
	byGroup, used := make([]covered, len(groups)), make([]float64, len(commitments))
	for _, share := range shares {
		c, group := &commitments[share.Commitment], &groups[share.Group]
		rate := 1 - min(max(c.Discount, 0), 1)
		byGroup[share.Group].part += share.Part
		byGroup[share.Group].cost += share.Part * rate
		if c.Machines > 0 {
			used[share.Commitment] += share.Part * float64(group.Count)
		} else {
			used[share.Commitment] += share.Part * float64(group.Count) * group.Price * rate
		}
	}
	for i := range commitments {
		use := CommitmentUse{Name: commitments[i].Name, OfMachines: commitments[i].Machines > 0, Committed: max(0, commitments[i].HourlySpend), Used: used[i]}
		if use.OfMachines {
			use.Committed = float64(commitments[i].Machines)
		}
		use.Used = min(use.Used, use.Committed) // but for rounding
		use.Unused = use.Committed - use.Used
		if !use.OfMachines {
			r.Wasted += use.Unused
		}
		r.Commitments = append(r.Commitments, use)
	}
	coverage := make([]covered, len(parts))
	for i := range parts {
		coverage[i] = byGroup[of[i]]
	}
	return coverage
}

// sums of a part.
func (p *part) sums(by covered) Sums {
	count := float64(p.Count)
	s := Sums{Machines: p.Count, OnDemand: p.OnDemand * count, List: p.List * count, Committed: p.List * count * by.cost}
	if p.List == 0 && p.OnDemand == 0 {
		s.Unpriced = p.Count
	}
	s.Paid = p.List*count*max(0, 1-by.part) + s.Committed
	s.SavedByCommitments = s.List - s.Paid
	switch p.saver {
	case spot:
		s.SavedBySpot = s.OnDemand - s.List
	case reserved:
		s.SavedByReservations = s.OnDemand - s.List
	}
	return s
}

// use counts the machines of each reservation.
func (r *Report) use(parts []part, reservations []Reservation) {
	for _, reservation := range reservations {
		use := ReservationUse{Reservation: reservation}
		for i := range parts {
			if p := &parts[i]; p.Reservation == reservation.ID && p.InstanceType == reservation.InstanceType && p.Zone == reservation.Zone {
				use.Used += p.Count
			}
		}
		use.Unused = max(0, reservation.Count-use.Used)
		r.Reservations = append(r.Reservations, use)
	}
}
