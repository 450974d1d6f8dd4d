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
	"github.com/autonode-io/autonode/fleet/division"
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
	return cmp.Or(cmp.Compare(k.Cluster, other.Cluster), cmp.Compare(k.NodePool, other.NodePool), k.Offering.Compare(other.Offering))
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
	// Price that each of Count is billed at an hour, used or not. Nil: the on-demand price of its machines, and not known if it is prepaid.
	Price *float64
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
	Kind    division.Kind
	Measure division.Measure
	// Committed, Used and Unused are in the unit of Measure.
	Committed, Used, Unused float64
	// Wasted is the hourly cost of Unused. Unknown: it has no price, so that it isn't in Report.Wasted.
	Wasted  float64
	Unknown bool

	// index of the commitment.
	index int
}

// ReservationUse is how many machines of a reservation are used.
type ReservationUse struct {
	Reservation
	Used, Unused int64
	// Each is the hourly price of one.
	Each float64
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
	Applied *division.Commitments
}

// Bill is the sum of all payments: for the machines, and for unused commitments and reservations.
func (r *Report) Bill() float64 { return r.Total.Paid + r.Wasted }

// Of returns the costs of machines. Machines of the same type and price share their covers equally, whichever cluster they are of.
func Of(machines []Machines, commitments []division.Commitment, reservations []Reservation) *Report {
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
// not the billed price: that is the reservation's, else the price on demand. A machine that isn't of the reservation's type and zone is
// billed as one on demand, and so is any in an expired reservation.
func priced(m Machines, reservation *Reservation) part {
	p := part{Machines: m, billed: m.Offering, saver: m.CapacityType}
	p.Count, p.List, p.OnDemand = max(p.Count, 0), max(p.List, 0), max(p.OnDemand, 0)
	switch {
	case p.CapacityType != reserved:
		if p.OnDemand == 0 || p.CapacityType != spot {
			p.OnDemand = p.List
		}
		return p
	case reservation == nil:
	case reservation.Expired || !reservation.has(&m):
		p.billed.CapacityType, p.billed.Reservation = onDemand, ""
	case reservation.Price != nil:
		p.List, p.prepaid = max(0, *reservation.Price), reservation.Prepaid
		p.OnDemand = cmp.Or(p.OnDemand, p.List)
		return p
	case reservation.Prepaid:
		p.List, p.OnDemand, p.prepaid = 0, 0, true
		return p
	}
	p.OnDemand = cmp.Or(p.OnDemand, p.List)
	p.List = p.OnDemand
	return p
}

// has reports whether machines are in the reservation.
func (r *Reservation) has(m *Machines) bool {
	return m.Reservation == r.ID && m.InstanceType == r.InstanceType && m.Zone == r.Zone
}

// use counts the machines of each reservation.
func (r *Report) use(parts []part, reservations []Reservation) {
	for i := range reservations {
		use := ReservationUse{Reservation: reservations[i]}
		onDemand := 0.0
		for i := range parts {
			if p := &parts[i]; use.has(&p.Machines) {
				use.Used += p.Count
				onDemand, use.vcpus, use.memory = max(onDemand, p.OnDemand), max(use.vcpus, p.VCPUs), max(use.memory, p.Memory)
			}
		}
		if use.vcpus == 0 {
			use.vcpus, use.memory = division.Resources(use.InstanceType)
		}
		use.Each = onDemand
		if use.Price != nil {
			use.Each = max(0, *use.Price)
		}
		use.Unused = max(0, use.Count-use.Used)
		use.Unknown = use.Unused > 0 && use.Price == nil && use.Each == 0 && !use.Expired
		r.Reservations = append(r.Reservations, use)
	}
}

// covered is the part of a machine's list price that commitments cover, of which 1 is all, and its hourly cost.
type covered struct{ part, cost float64 }

// cover applies commitments, and returns each part's cover. The unused part of a reservation is billed like a machine that runs.
func (r *Report) cover(parts []part, commitments []division.Commitment) []covered {
	r.Applied = division.NewCommitments(commitments)
	groups := make([]int, len(parts))
	for i := range parts {
		if p := &parts[i]; p.prepaid {
			groups[i] = -1
		} else {
			groups[i] = r.Applied.Add(division.Running{Offering: p.billed, Price: p.List, VCPUs: p.VCPUs, Memory: p.Memory}, p.Count)
		}
	}
	idle := r.idle()
	shares, unused := r.Applied.Shares()
	byGroup := make([]covered, len(r.Applied.Groups()))
	for _, share := range shares {
		price, _ := r.Applied.UnitPrice(&r.Applied.Covers()[share.Cover])
		byGroup[share.Group].part += share.Part
		byGroup[share.Group].cost += share.Units * price / float64(r.Applied.Groups()[share.Group].Count)
	}
	r.waste(unused)
	for i := range r.Reservations {
		if use := &r.Reservations[i]; idle[i] >= 0 {
			by := byGroup[idle[i]]
			use.Wasted = float64(use.Unused) * (use.Each*max(0, 1-by.part) + by.cost)
			r.Wasted += use.Wasted
		}
	}
	coverage := make([]covered, len(parts))
	for i := range parts {
		if groups[i] >= 0 {
			coverage[i] = byGroup[groups[i]]
		}
	}
	return coverage
}

// idle adds the unused parts of reservations that commitments may cover, and returns their groups, or -1. It counts the others as wasted.
func (r *Report) idle() []int {
	idle := make([]int, len(r.Reservations))
	for i := range r.Reservations {
		use := &r.Reservations[i]
		idle[i] = -1
		switch {
		case use.Unused == 0 || use.Expired || use.Unknown:
		case use.Prepaid:
			use.Wasted = float64(use.Unused) * use.Each
			r.Wasted += use.Wasted
		default:
			offering := capacity.Offering{InstanceType: use.InstanceType, Zone: use.Zone, CapacityType: reserved}
			idle[i] = r.Applied.Add(division.Running{Offering: offering, Price: use.Each, VCPUs: use.vcpus, Memory: use.memory, Idle: true}, use.Unused)
		}
	}
	return idle
}

// waste sums up the used parts of commitments, in the order of the account's, and the cost of the rest.
func (r *Report) waste(unused []float64) {
	for k, left := range unused {
		cover := &r.Applied.Covers()[k]
		use := CommitmentUse{Name: cover.Name, Kind: cover.Kind, Measure: cover.Measure, Committed: cover.Committed, Used: cover.Committed - left, Unused: left, index: cover.Index()}
		price, known := r.Applied.UnitPrice(cover)
		use.Wasted, use.Unknown = left*price, left > 0 && !known
		r.Wasted += use.Wasted
		r.Commitments = append(r.Commitments, use)
	}
	slices.SortStableFunc(r.Commitments, func(a, b CommitmentUse) int { return cmp.Compare(a.index, b.index) })
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
