// SPDX-License-Identifier: Apache-2.0

// Package cost sums up the costs of an account's machines. It is pure, without clients. Package capacity decides which machines a
// commitment covers, as for the prices that Karpenter compares.
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

// Key is the cluster, NodePool and offering of a row's machines.
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
	// VCPUs in thousandths, and Memory in bytes, of one.
	VCPUs, Memory int64
}

// Reservation of an account.
type Reservation struct {
	ID, InstanceType, Zone string
	Count                  int64
	// Price that each of Count is billed at an hour, used or not. Zero: the on-demand price of its machines.
	Price float64
	// Prepaid: commitments don't cover it.
	Prepaid bool
	// Expired: its machines are billed on demand.
	Expired bool
}

// Sums of a number of machines.
type Sums struct {
	Machines int64
	// Unpriced is how many of them have no known price. They count as costing nothing.
	Unpriced int64
	// OnDemand is their cost on demand: each as a node of its own that nothing is reserved or committed for.
	OnDemand float64
	// List is their bill without commitments, and Paid the real one: commitments cover a part at their own price, which is Committed. Paid
	// doesn't have unused commitments.
	List, Paid, Committed float64
	// The saving by each: OnDemand is Paid with all three.
	SavedBySpot, SavedByReservations, SavedByCommitments float64
}

// Saved is the sum of the savings.
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

// CommitmentUse is how much of a commitment is used: of a CommittedUse, its vCPUs or its memory.
type CommitmentUse struct {
	Name    string
	Kind    capacity.Kind
	Measure capacity.Measure
	// Committed, Used and Unused are in the unit of Measure.
	Committed, Used, Unused float64
	// Wasted is the hourly cost of Unused. Unknown: it has no price, so that it isn't in Report.Wasted.
	Wasted  float64
	Unknown bool
}

// ReservationUse is how many machines of a reservation are used.
type ReservationUse struct {
	Reservation
	Used, Unused int64
	// Wasted is the hourly cost of Unused beyond commitments. Unknown: the reservation has no price, and no machine in it one on
	// demand, so that it isn't in Report.Wasted.
	Wasted  float64
	Unknown bool

	vcpus, memory int64
}

// Report is the costs of an account's machines.
type Report struct {
	// Rows in the order of their keys.
	Rows  []Row
	Total Sums
	// Wasted is the money an hour for commitments and reservations that are unused. It is paid beside Total.Paid.
	Wasted       float64
	Commitments  []CommitmentUse
	Reservations []ReservationUse
	// Applied are the commitments beside the machines.
	Applied *capacity.Commitments
}

// Bill is the sum of all payments: for the machines, and for unused commitments and reservations.
func (r *Report) Bill() float64 { return r.Total.Paid + r.Wasted }

// Of returns the costs of machines. Machines of the same type and price share their covers equally, whichever cluster they are of.
func Of(machines []Machines, commitments []capacity.Commitment, reservations []Reservation) *Report {
	byID := make(map[string]*Reservation, len(reservations))
	for i := range reservations {
		byID[reservations[i].ID] = &reservations[i]
	}
	parts := make([]part, len(machines))
	for i := range machines {
		parts[i] = priced(machines[i], byID[machines[i].Reservation])
	}
	report := &Report{}
	report.use(parts, reservations)
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
	// prepaid: commitments don't cover it.
	prepaid bool
}

// priced settles the offering and price that machines are billed at. The price of a reserved offering declares Karpenter's preference, and
// not the billed price: that is the reservation's, else the price on demand. In an expired reservation, a machine is billed as one on
// demand.
func priced(m Machines, reservation *Reservation) part {
	p := part{Machines: m, billed: m.Offering, saver: m.CapacityType}
	p.Count, p.List, p.OnDemand = max(p.Count, 0), max(p.List, 0), max(p.OnDemand, 0)
	switch {
	case p.CapacityType != reserved:
		if p.OnDemand == 0 || p.CapacityType != spot {
			p.OnDemand = p.List
		}
		return p
	case reservation != nil && reservation.Expired:
		p.billed.CapacityType, p.billed.Reservation = onDemand, ""
	case reservation != nil && reservation.Price > 0:
		p.List, p.prepaid = reservation.Price, reservation.Prepaid
		p.OnDemand = cmp.Or(p.OnDemand, p.List)
		return p
	case reservation != nil:
		p.prepaid = reservation.Prepaid
	}
	p.OnDemand = cmp.Or(p.OnDemand, p.List)
	p.List = p.OnDemand
	return p
}

// use counts the machines of each reservation.
func (r *Report) use(parts []part, reservations []Reservation) {
	for i := range reservations {
		use := ReservationUse{Reservation: reservations[i]}
		onDemand := 0.0
		for i := range parts {
			if p := &parts[i]; p.Reservation == use.ID && p.InstanceType == use.InstanceType && p.Zone == use.Zone {
				use.Used += p.Count
				onDemand, use.vcpus, use.memory = max(onDemand, p.OnDemand), max(use.vcpus, p.VCPUs), max(use.memory, p.Memory)
			}
		}
		use.Price = cmp.Or(max(0, use.Price), onDemand)
		use.Unused = max(0, use.Count-use.Used)
		use.Unknown = use.Unused > 0 && use.Price == 0 && !use.Expired
		r.Reservations = append(r.Reservations, use)
	}
}

// covered is the part of a machine's list price that commitments cover, of which 1 is all, and its hourly cost.
type covered struct{ part, cost float64 }

// cover applies commitments, and returns each part's cover. The unused part of a reservation is billed like a machine that runs.
func (r *Report) cover(parts []part, commitments []capacity.Commitment) []covered {
	var groups []capacity.Group
	at := map[capacity.Running]int{}
	group := func(running capacity.Running, count int64) int {
		j, ok := at[running]
		if !ok {
			j = len(groups)
			at[running] = j
			groups = append(groups, capacity.Group{Running: running})
		}
		groups[j].Count += count
		return j
	}
	of := make([]int, len(parts))
	for i := range parts {
		if p := &parts[i]; p.prepaid {
			of[i] = -1
		} else {
			of[i] = group(capacity.Running{Offering: p.billed, Price: p.List, VCPUs: p.VCPUs, Memory: p.Memory}, p.Count)
		}
	}
	idle := r.idle(group)
	applied, shares := capacity.Apply(commitments, groups)
	r.Applied = applied
	byGroup, used := make([]covered, len(groups)), map[string]float64{}
	for _, share := range shares {
		byGroup[share.Group].part += share.Part
		byGroup[share.Group].cost += share.Cost / float64(groups[share.Group].Count)
	}
	for _, cover := range applied.Covers() {
		used[cover.Name] = cover.Committed - cover.Left
	}
	r.waste(commitments, groups, used)
	for i := range r.Reservations {
		if use := &r.Reservations[i]; idle[i] >= 0 {
			by := byGroup[idle[i]]
			use.Wasted = float64(use.Unused) * (use.Price*max(0, 1-by.part) + by.cost)
			r.Wasted += use.Wasted
		}
	}
	coverage := make([]covered, len(parts))
	for i := range parts {
		if of[i] >= 0 {
			coverage[i] = byGroup[of[i]]
		}
	}
	return coverage
}

// idle adds groups for the unused parts of reservations that commitments may cover, and returns those, or -1. It counts the others as
// wasted.
func (r *Report) idle(group func(capacity.Running, int64) int) []int {
	idle := make([]int, len(r.Reservations))
	for i := range r.Reservations {
		use := &r.Reservations[i]
		idle[i] = -1
		switch {
		case use.Unused == 0 || use.Expired || use.Unknown:
		case use.Prepaid:
			use.Wasted = float64(use.Unused) * use.Price
			r.Wasted += use.Wasted
		default:
			offering := capacity.Offering{InstanceType: use.InstanceType, Zone: use.Zone, CapacityType: reserved, Reservation: use.ID}
			idle[i] = group(capacity.Running{Offering: offering, Price: use.Price, VCPUs: use.vcpus, Memory: use.memory, Idle: true}, use.Unused)
		}
	}
	return idle
}

// waste sums up the used parts of commitments, and the cost of the rest.
func (r *Report) waste(commitments []capacity.Commitment, groups []capacity.Group, used map[string]float64) {
	covers := capacity.CoversOf(commitments)
	slices.SortStableFunc(covers, func(a, b capacity.Cover) int { return cmp.Compare(a.Commitment(), b.Commitment()) })
	for i := range covers {
		cover := &covers[i]
		c := &commitments[cover.Commitment()]
		use := CommitmentUse{Name: cover.Name, Kind: c.Kind, Measure: cover.Measure, Committed: cover.Committed, Used: min(used[cover.Name], cover.Committed)}
		use.Unused = use.Committed - use.Used
		price := cover.Price
		if price == 0 && cover.Measure == capacity.Instances && use.Unused > 0 {
			price = cover.Cheapest(groups) * (1 - min(max(c.Discount, 0), 1))
			use.Unknown = price == 0 && c.Discount < 1
		}
		use.Wasted = use.Unused * price
		r.Wasted += use.Wasted
		r.Commitments = append(r.Commitments, use)
	}
}

// sums of a part.
func (p *part) sums(by covered) Sums {
	count := float64(p.Count)
	s := Sums{Machines: p.Count, OnDemand: p.OnDemand * count, List: p.List * count, Committed: by.cost * count}
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
