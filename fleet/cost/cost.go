// SPDX-License-Identifier: Apache-2.0

// Package cost sums up the costs of an account's machines. It is pure, without clients. Package division decides which machines a
// commitment covers, as for the prices that Karpenter compares.
//
//	two of m5.large, on demand at 0.10 each, half covered by a commitment with a discount of 30 %:
//	list 0.20, committed 0.10 x 0.7 = 0.07, paid 0.10 + 0.07 = 0.17, saved by commitments 0.03
//
// Amounts are in the currency of the prices, per hour. JSON has the names that `autonode cost` prints.
package cost

import (
	"cmp"
	"maps"
	"slices"

	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/fleet/division"
)

const (
	onDemand = "on-demand"
	spot     = "spot"
	reserved = "reserved"
)

// Key is the cluster, NodePool and offering of a row's machines.
type Key struct {
	Cluster  string `json:"cluster,omitempty"`
	NodePool string `json:"nodePool,omitempty"`
	capacity.Offering
}

func (k Key) compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Cluster, other.Cluster), cmp.Compare(k.NodePool, other.NodePool), k.Offering.Compare(other.Offering))
}

// Machines are a number of equal machines of a cluster's NodePool.
type Machines struct {
	Cluster, NodePool string
	capacity.Priced
	Count int64
}

// Reservation of an account.
type Reservation struct {
	ID           string `json:"id"`
	InstanceType string `json:"-"`
	Zone         string `json:"-"`
	Count        int64  `json:"count"`
	// Price that each of Count is billed at an hour, used or not. Nil: the on-demand price of its machines, and not known if it is prepaid.
	Price *float64 `json:"-"`
	// Prepaid: commitments don't cover it.
	Prepaid bool `json:"-"`
	// Expired: its machines are billed on demand.
	Expired bool `json:"expired,omitempty"`
}

// Sums of a number of machines.
type Sums struct {
	Machines int64 `json:"machines"`
	// Unpriced is how many of them have no known price. They count as costing nothing.
	Unpriced int64 `json:"unpriced,omitempty"`
	// OnDemand is their cost on demand: each as a node of its own that nothing is reserved or committed for.
	OnDemand float64 `json:"onDemand"`
	// List is their bill without commitments, and Paid the real one: commitments cover a part at their own price, which is Committed. Paid
	// doesn't have unused commitments.
	List      float64 `json:"list"`
	Paid      float64 `json:"paid"`
	Committed float64 `json:"committed"`
	Saved     Savings `json:"saved"`
}

// Savings are the parts of the difference between OnDemand and Paid.
type Savings struct {
	Spot         float64 `json:"spot"`
	Reservations float64 `json:"reservations"`
	Commitments  float64 `json:"commitments"`
}

func (s *Sums) add(other *Sums) {
	s.Machines += other.Machines
	s.Unpriced += other.Unpriced
	s.OnDemand += other.OnDemand
	s.List += other.List
	s.Paid += other.Paid
	s.Committed += other.Committed
	s.Saved.Spot += other.Saved.Spot
	s.Saved.Reservations += other.Saved.Reservations
	s.Saved.Commitments += other.Saved.Commitments
}

// Row has the sums of the machines of a key.
type Row struct {
	Key
	Sums
}

// CommitmentUse is how much of a commitment is used: of a CommittedUse, its vCPUs or its memory.
type CommitmentUse struct {
	Name string        `json:"name"`
	Kind division.Kind `json:"kind"`
	// Unit of Committed, Used and Unused.
	Unit      division.Measure `json:"unit"`
	Committed float64          `json:"committed"`
	Used      float64          `json:"used"`
	Unused    float64          `json:"unused"`
	// Wasted is the hourly cost of Unused; nil if it has no known price, so that it isn't in Report.Wasted.
	Wasted *float64 `json:"wasted"`
	// Largest is the most that one of the machines uses; zero if none does.
	Largest float64 `json:"-"`
	// Index of the commitment.
	Index int `json:"-"`
}

// ReservationUse is how many machines of a reservation are used.
type ReservationUse struct {
	Reservation
	Used   int64 `json:"used"`
	Unused int64 `json:"unused"`
	// Wasted is the hourly cost of Unused beyond commitments. Nil: the reservation has no price, and no machine in it one on demand, so that
	// it isn't in Report.Wasted.
	Wasted *float64 `json:"wasted"`
	// Each is one of them, with its hourly price.
	Each capacity.Priced `json:"-"`

	// group of the unused ones; -1 for none that commitments cover.
	group int
}

// Report is the costs of an account's machines.
type Report struct {
	// Rows in the order of their keys.
	Rows  []Row `json:"rows"`
	Total Sums  `json:"total"`
	// Wasted is the money an hour for commitments and reservations that are unused. It is paid beside Total.Paid: the bill is the sum of both.
	Wasted       float64          `json:"wasted"`
	Commitments  []CommitmentUse  `json:"commitments,omitempty"`
	Reservations []ReservationUse `json:"reservations,omitempty"`
	// Applied are the commitments beside the machines.
	Applied *division.Commitments `json:"-"`
}

// Of returns the costs of machines. Machines of the same type and price share their covers equally, whichever cluster they are of.
func Of(machines []Machines, commitments []division.Commitment, reservations []Reservation) *Report {
	report := &Report{Applied: division.NewCommitments(commitments), Reservations: make([]ReservationUse, len(reservations))}
	byID := make(map[string]*ReservationUse, len(reservations))
	for i, r := range reservations {
		report.Reservations[i] = ReservationUse{Reservation: r}
		byID[r.ID] = &report.Reservations[i]
	}
	parts := make([]part, len(machines))
	for i := range machines {
		parts[i] = priced(machines[i], byID[machines[i].Reservation])
		if p := &parts[i]; !p.prepaid {
			p.group = report.Applied.Add(division.Group{Priced: p.Priced, Count: p.Count})
		}
	}
	for i := range report.Reservations {
		report.idle(&report.Reservations[i])
	}
	covered, unused := report.Applied.Shares()
	report.waste(covered, unused)
	for i := range parts {
		p := &parts[i]
		report.Rows = append(report.Rows, Row{Key{p.Cluster, p.NodePool, p.Offering}, p.sums(covered)})
	}
	report.Rows = report.Group(func(k Key) Key { return k })
	for i := range report.Rows { // in their order, so that a sum doesn't depend on the machines'
		report.Total.add(&report.Rows[i].Sums)
	}
	return report
}

// Group returns the sums of rows for which a function returns the same, in the order of those keys.
func (r *Report) Group(by func(Key) Key) []Row {
	sums := map[Key]*Sums{}
	for i := range r.Rows {
		key := by(r.Rows[i].Key)
		if sums[key] == nil {
			sums[key] = &Sums{}
		}
		sums[key].add(&r.Rows[i].Sums)
	}
	groups := make([]Row, 0, len(sums))
	for _, key := range slices.SortedFunc(maps.Keys(sums), Key.compare) {
		groups = append(groups, Row{key, *sums[key]})
	}
	return groups
}

// part is a number of equal machines with the offering and prices that are billed.
type part struct {
	Machines
	// saver is the capacity type that saves the difference of OnDemand and Price.
	saver string
	// prepaid: commitments don't cover it.
	prepaid bool
	group   int
}

// priced settles the offering and price that machines are billed at, and counts them in their reservation. A reserved offering's own price
// declares Karpenter's preference. The reservation's is billed, else that on demand. A machine that isn't of the reservation's type and
// zone is billed as one on demand, and so is any in an expired reservation.
func priced(m Machines, use *ReservationUse) part {
	p := part{Machines: m, saver: m.CapacityType, group: -1}
	p.Count, p.Price, p.OnDemand = max(p.Count, 0), max(p.Price, 0), max(p.OnDemand, 0)
	matches := use != nil && m.InstanceType == use.InstanceType && m.Zone == use.Zone
	switch {
	case p.saver == spot && p.OnDemand > 0:
	case p.saver != reserved:
		p.OnDemand = p.Price
	case matches && !use.Expired && use.Price != nil:
		p.Price, p.prepaid = max(0, *use.Price), use.Prepaid
		p.OnDemand = cmp.Or(p.OnDemand, p.Price)
	case matches && !use.Expired && use.Prepaid:
		p.Price, p.OnDemand, p.prepaid = 0, 0, true
	default:
		p.OnDemand = cmp.Or(p.OnDemand, p.Price)
		p.Price = p.OnDemand
	}
	if matches {
		use.Used += p.Count
		each := &use.Each
		each.Price, each.VCPUs, each.Memory = max(each.Price, p.OnDemand), max(each.VCPUs, p.VCPUs), max(each.Memory, p.Memory)
	}
	if p.saver == reserved && use != nil && (use.Expired || !matches) {
		p.CapacityType, p.Reservation = onDemand, ""
	}
	return p
}

// idle adds the unused part of a reservation, which is billed like a machine that runs: commitments may cover it unless it is prepaid.
func (r *Report) idle(use *ReservationUse) {
	use.Each.InstanceType, use.Each.Zone, use.Each.CapacityType = use.InstanceType, use.Zone, reserved
	if use.Each.VCPUs == 0 {
		use.Each.VCPUs, use.Each.Memory = division.Resources(use.InstanceType)
	}
	if use.Price != nil {
		use.Each.Price = max(0, *use.Price)
	}
	use.Unused, use.group = max(0, use.Count-use.Used), -1
	wasted := 0.0
	switch {
	case use.Unused == 0 || use.Expired:
	case use.Price == nil && use.Each.Price == 0:
		return
	case use.Prepaid:
		wasted = float64(use.Unused) * use.Each.Price
	default:
		use.group = r.Applied.Add(division.Group{Priced: use.Each, Idle: true, Count: use.Unused})
	}
	use.Wasted = &wasted
}

// waste sums up the cost of the unused parts of commitments, in the order of the account's, and of reservations.
func (r *Report) waste(covered []division.Covered, unused []float64) {
	for k, unused := range unused {
		cover := &r.Applied.Covers[k]
		largest, price, known := r.Applied.Unit(cover)
		use := CommitmentUse{
			Name: cover.Name, Kind: cover.Kind, Unit: cover.Measure, Index: cover.Index, Largest: largest,
			Committed: cover.Committed, Used: cover.Committed - unused, Unused: unused,
		}
		if known || unused == 0 {
			use.Wasted = new(unused * price)
			r.Wasted += *use.Wasted
		}
		r.Commitments = append(r.Commitments, use)
	}
	slices.SortStableFunc(r.Commitments, func(a, b CommitmentUse) int { return cmp.Compare(a.Index, b.Index) })
	for i := range r.Reservations {
		use := &r.Reservations[i]
		if use.group >= 0 {
			cover := covered[use.group]
			*use.Wasted = float64(use.Unused) * (use.Each.Price*max(0, 1-cover.Part) + cover.Cost)
		}
		if use.Wasted != nil {
			r.Wasted += *use.Wasted
		}
	}
}

// sums of a part.
func (p *part) sums(covered []division.Covered) Sums {
	var cover division.Covered
	if p.group >= 0 {
		cover = covered[p.group]
	}
	count := float64(p.Count)
	s := Sums{Machines: p.Count, OnDemand: p.OnDemand * count, List: p.Price * count, Committed: cover.Cost * count}
	if p.Price == 0 && p.OnDemand == 0 {
		s.Unpriced = p.Count
	}
	s.Paid = s.List*max(0, 1-cover.Part) + s.Committed
	s.Saved.Commitments = s.List - s.Paid
	switch p.saver {
	case spot:
		s.Saved.Spot = s.OnDemand - s.List
	case reserved:
		s.Saved.Reservations = s.OnDemand - s.List
	}
	return s
}
