// SPDX-License-Identifier: Apache-2.0

package cost_test

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/fleet/cost"
	"github.com/autonode-io/autonode/fleet/division"
)

// one is a number of machines on demand.
func one(cluster, instanceType string, price float64, count int64) cost.Machines {
	return machines(cluster, "a", instanceType, "on-demand", "", price, 0, count)
}

func atSpot(cluster, instanceType string, price float64, count int64) cost.Machines {
	return machines(cluster, "a", instanceType, "spot", "", price, 0, count)
}

// billOf is the sum of all payments: for the machines, and for unused commitments and reservations.
func billOf(r *cost.Report) float64 { return r.Total.Paid + r.Wasted }

// TestBills has fleets that were billed by hand, in the order that the clouds publish.
func TestBills(t *testing.T) {
	compute := func(name string, spend float64, rates map[string]float64) division.Commitment {
		return division.Commitment{Name: name, Kind: division.SavingsPlan, HourlySpend: spend, Rates: rates}
	}
	c5 := map[string]float64{"c5.9xlarge": 2, "c5.24xlarge": 8}
	c5Fleet := []cost.Machines{one("blue", "c5.9xlarge", 4, 1), one("green", "c5.24xlarge", 10, 1)}
	// The reservation's own price in the catalog, 0.010, reports what Karpenter prefers.
	inReservation := []cost.Machines{machines("blue", "a", "k4", "reserved", "cr", 0.010, 0.139, 2)}
	for _, tc := range []struct {
		name         string
		machines     []cost.Machines
		commitments  []division.Commitment
		reservations []cost.Reservation
		// bill in all, and what is wasted of it.
		bill, wasted float64
		// paid by cluster, if it matters.
		paid map[string]float64
	}{
		{
			name: "When a plan has a rate per type, it should cover what saves most first", machines: c5Fleet,
			commitments: []division.Commitment{compute("csp", 6, c5)}, bill: 11.00, paid: map[string]float64{"blue": 2, "green": 9},
		},
		{
			name: "When a plan covers one type, it should leave the other on demand", machines: c5Fleet,
			commitments: []division.Commitment{compute("csp", 2, c5)}, bill: 12.00, paid: map[string]float64{"blue": 2, "green": 10},
		},
		{
			name:     "When a plan of a family and one of any type overlap, it should apply the family's first",
			machines: []cost.Machines{one("blue", "m5.24x", 5, 1), one("green", "c5.9x", 2, 1)},
			commitments: []division.Commitment{
				{Name: "csp", Kind: division.SavingsPlan, HourlySpend: 1, Discount: 0.5},
				{Name: "ec2sp", Kind: division.SavingsPlan, EC2Instance: true, HourlySpend: 3, Discount: 0.4, Selector: division.Selector{InstanceTypes: []string{"m5.*"}}},
			},
			bill: 4.00, paid: map[string]float64{"blue": 3, "green": 1},
		},
		{
			name:     "When a plan saves as much on two types and covers a part, it should cover the lowest rate first",
			machines: []cost.Machines{one("blue", "m5.large", 0.10, 10), one("green", "m5.8xlarge", 1.60, 1)},
			commitments: []division.Commitment{
				{Name: "csp", Kind: division.SavingsPlan, HourlySpend: 0.70, Discount: 0.3},
			},
			bill: 2.30, paid: map[string]float64{"blue": 0.70, "green": 1.60},
		},
		{
			name:     "When a plan has such rates by type, it should cover the lowest rate first, too",
			machines: []cost.Machines{one("blue", "m5.large", 0.10, 10), one("green", "m5.8xlarge", 1.60, 1)},
			commitments: []division.Commitment{
				compute("csp", 0.70, map[string]float64{"m5.large": 0.07, "m5.8xlarge": 1.12}),
			},
			bill: 2.30, paid: map[string]float64{"blue": 0.70, "green": 1.60},
		},
		{
			name: "When reserved instances are unused, it should waste their price", machines: []cost.Machines{one("blue", "m5.xlarge", 0.192, 2)},
			commitments: []division.Commitment{{Name: "ri", Kind: division.ReservedInstance, InstanceType: "m5.xlarge", Instances: 10, Price: ptr.To(0.1152)}},
			bill:        1.152, wasted: 0.9216,
		},
		{
			name: "When reserved instances at a percentage are unused, it should waste what those that run cost", machines: []cost.Machines{one("blue", "m5.xlarge", 0.192, 2)},
			commitments: []division.Commitment{{Name: "ri", Kind: division.ReservedInstance, InstanceType: "m5.xlarge", Instances: 10, Discount: 0.4}},
			bill:        1.152, wasted: 0.9216,
		},
		{
			name: "When a plan without a selector is beside spot, it should not cover that", machines: []cost.Machines{one("blue", "m5.xlarge", 0.192, 2), atSpot("blue", "c5.large", 0.034, 10)},
			commitments: []division.Commitment{{Name: "csp", Kind: division.SavingsPlan, HourlySpend: 0.40, Discount: 0.3}},
			bill:        0.74, wasted: 0.1312,
		},
		{
			name: "When a reservation of Azure's runs a larger size, it should cover the ratio of their sizes", machines: []cost.Machines{one("blue", "Standard_D8s_v5", 0.384, 1)},
			commitments: []division.Commitment{{Name: "res", Kind: division.AzureReservation, InstanceType: "Standard_D4s_v5", SizeFlexible: true, Instances: 1, Price: ptr.To(0.1152)}},
			bill:        0.3072,
		},
		{
			name: "When a reservation of Azure's isn't flexible, it should cover its size alone", machines: []cost.Machines{one("blue", "Standard_D8s_v5", 0.384, 1)},
			commitments: []division.Commitment{{Name: "res", Kind: division.AzureReservation, InstanceType: "Standard_D4s_v5", Instances: 1, Price: ptr.To(0.1152)}},
			bill:        0.4992, wasted: 0.1152,
		},
		{
			name: "When a capacity reservation is used in part, it should bill all of it", machines: inReservation,
			reservations: []cost.Reservation{{ID: "cr", InstanceType: "k4", Zone: "a", Count: 10, Price: ptr.To(0.139)}}, bill: 1.39, wasted: 1.112,
		},
		{
			name: "When a capacity reservation has no price, it should bill what its machines cost on demand", machines: inReservation,
			reservations: []cost.Reservation{{ID: "cr", InstanceType: "k4", Zone: "a", Count: 10}}, bill: 1.39, wasted: 1.112,
		},
		{
			name: "When a plan covers a capacity reservation, it should cover what is unused of that, too", machines: inReservation,
			commitments:  []division.Commitment{{Name: "csp", Kind: division.SavingsPlan, HourlySpend: 0.973, Discount: 0.3}},
			reservations: []cost.Reservation{{ID: "cr", InstanceType: "k4", Zone: "a", Count: 10, Price: ptr.To(0.139)}}, bill: 0.973, wasted: 0.7784,
		},
		{
			name:     "When instances, a plan for a family and spot are mixed, it should bill each by its rule",
			machines: []cost.Machines{one("blue", "m5.xlarge", 0.192, 4), one("green", "m5.xlarge", 0.192, 2), atSpot("green", "m5.large", 0.0353, 5)},
			commitments: []division.Commitment{
				{Name: "ri", Kind: division.ReservedInstance, InstanceType: "m5.xlarge", Instances: 2, Price: ptr.To(0.192 * 0.6)},
				{Name: "ec2sp", Kind: division.SavingsPlan, EC2Instance: true, HourlySpend: 0.30, Rates: map[string]float64{"m5.xlarge": 0.192 * 0.63}},
			},
			bill: 0.99870952381, paid: map[string]float64{"blue": 0.54813968254, "green": 0.45056984127},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			report := cost.Of(tc.machines, tc.commitments, tc.reservations)
			if !equal(billOf(report), tc.bill) || !equal(report.Wasted, tc.wasted) {
				t.Errorf("the bill is %g, of which %g is wasted; want %g and %g", billOf(report), report.Wasted, tc.bill, tc.wasted)
			}
			for _, row := range report.Group(func(k cost.Key) cost.Key { return cost.Key{Cluster: k.Cluster} }) {
				if want, matters := tc.paid[row.Cluster]; matters && !equal(row.Paid, want) {
					t.Errorf("%s pays %g, want %g", row.Cluster, row.Paid, want)
				}
			}
		})
	}
}

// random is a fleet for the model, and the same fleet for us.
type random struct {
	*rand.Rand
	cloud        string
	usage        []*modelUsage
	model        []modelCommitment
	machines     []cost.Machines
	commitments  []division.Commitment
	reservations []cost.Reservation
}

func float(r *big.Rat) float64 { f, _ := r.Float64(); return f }

func (r *random) pick() modelType { return modelTypes[r.cloud][r.IntN(len(modelTypes[r.cloud]))] }

// discounted is a price less 0 to 90 %.
func (r *random) discounted(price *big.Rat) *big.Rat { return times(price, rat(1+r.Int64N(10), 10)) }

func (r *random) add(cluster string, t modelType, capacityType, reservation string, price *big.Rat, count int64) {
	u := &modelUsage{modelType: t, cluster: cluster, spot: capacityType == "spot", price: price, machines: rat(count, 1)}
	if t.series == "n2" && !u.spot {
		u.cpus, u.gibs = rat(count*t.vcpus, 1), rat(count*t.gib, 1)
	}
	r.usage = append(r.usage, u)
	if cluster == "" {
		return // idle
	}
	m := machines(cluster, "p", t.name, capacityType, reservation, float(price), float(t.onDemand), count)
	m.VCPUs, m.Memory = t.vcpus*1000, t.gib<<30
	r.machines = append(r.machines, m)
}

func (r *random) fleet() {
	r.cloud = []string{"aws", "azure", "gcp"}[r.IntN(3)]
	for range r.IntN(8) {
		t, cluster := r.pick(), []string{"blue", "green"}[r.IntN(2)]
		if r.IntN(4) == 0 {
			r.add(cluster, t, "spot", "", over(t.onDemand, rat(3, 1)), 1+r.Int64N(4))
			continue
		}
		r.add(cluster, t, "on-demand", "", t.onDemand, 1+r.Int64N(6))
	}
	if r.IntN(3) == 0 {
		t, used, idle := r.pick(), r.Int64N(4), r.Int64N(3)
		r.reservations = append(r.reservations, cost.Reservation{ID: "cr", InstanceType: t.name, Zone: "a", Count: used + idle, Price: ptr.To(float(t.onDemand))})
		if used > 0 {
			r.add("blue", t, "reserved", "cr", t.onDemand, used)
			r.machines[len(r.machines)-1].Price = 0.0001 // which decides, and isn't billed
		}
		if idle > 0 {
			r.add("", t, "reserved", "cr", t.onDemand, idle)
		}
	}
	for range r.IntN(5) {
		r.commit(fmt.Sprint("c", len(r.model)))
	}
}

func (r *random) commit(name string) {
	t := r.pick()
	switch kind := r.IntN(3); {
	case kind == 0 && r.cloud == "gcp":
		c := modelCommitment{kind: "resources", amount: rat(r.Int64N(40), 1), gib: rat(r.Int64N(100), 1), price: r.discounted(n2CPU), gibPrice: r.discounted(n2GiB)}
		if slices.ContainsFunc(r.model, func(c modelCommitment) bool { return c.kind == "resources" }) {
			return // the model has one
		}
		r.model = append(r.model, c)
		r.commitments = append(r.commitments, division.Commitment{
			Name: name, Kind: division.CommittedUse, Selector: division.Selector{InstanceTypes: []string{"n2-*"}},
			CPU:    division.CommittedAmount{Amount: float(c.amount), Price: float(c.price), List: float(n2CPU)},
			Memory: division.CommittedAmount{Amount: float(c.gib), Price: float(c.gibPrice), List: float(n2GiB)},
		})
	case kind == 0:
		c := modelCommitment{kind: "instances", amount: rat(r.Int64N(8), 1), covers: t.name, price: r.discounted(t.onDemand), flexible: r.IntN(2) == 0}
		r.model = append(r.model, c)
		ours := division.Commitment{Name: name, Kind: division.ReservedInstance, InstanceType: t.name, SizeFlexible: c.flexible, Instances: float(c.amount), Price: ptr.To(float(c.price))}
		if r.cloud == "azure" {
			ours.Kind = division.AzureReservation
		}
		r.commitments = append(r.commitments, ours)
	default:
		c := modelCommitment{kind: "compute", amount: rat(r.Int64N(3000), 1000), rates: map[string]*big.Rat{}}
		ours := division.Commitment{Name: name, Kind: division.SavingsPlan, HourlySpend: float(c.amount), Rates: map[string]float64{}}
		if kind == 1 && r.cloud == "aws" {
			c.kind, c.covers = "series", t.series
			ours.EC2Instance, ours.Selector.InstanceTypes = true, []string{t.series + ".*"}
		}
		for _, each := range modelTypes[r.cloud] {
			if r.IntN(6) > 0 {
				c.rates[each.name] = r.discounted(each.onDemand)
				ours.Rates[each.name] = float(c.rates[each.name])
			}
		}
		r.model, r.commitments = append(r.model, c), append(r.commitments, ours)
	}
}

// TestBillsOfAnyFleet compares with the model of bill, and checks what has to be true of any bill.
func TestBillsOfAnyFleet(t *testing.T) {
	for seed := range uint64(10_000) {
		r := &random{Rand: rand.New(rand.NewPCG(seed, 7))}
		r.fleet()
		report := cost.Of(r.machines, r.commitments, r.reservations)
		list := 0.0
		for _, u := range r.usage {
			list += float(times(u.machines, u.price))
		}
		if report.Total.Paid > report.Total.List+rounding || billOf(report) > list+report.Wasted+rounding {
			t.Fatalf("seed %d: %g is paid and %g wasted, for machines of %g", seed, report.Total.Paid, report.Wasted, list)
		}
		want := bill(r.usage, r.model)
		if !equal(report.Wasted, float(want.waste)) {
			t.Fatalf("seed %d: %g is wasted; want %s\n%+v\n%+v\n%+v", seed, report.Wasted, want, r.machines, r.commitments, r.reservations)
		}
		for _, row := range report.Group(func(k cost.Key) cost.Key {
			return cost.Key{Cluster: k.Cluster, Offering: capacity.Offering{InstanceType: k.InstanceType}}
		}) {
			paid := want.paid[row.Cluster+"|"+row.InstanceType]
			if paid == nil {
				paid = new(big.Rat)
			}
			if !equal(row.Paid, float(paid)) {
				t.Fatalf("seed %d: %s pays %g for %s; want %s\n%+v\n%+v\n%+v", seed, row.Cluster, row.Paid, row.InstanceType, want, r.machines, r.commitments, r.reservations)
			}
		}
		r.properties(t, seed, report)
	}
}

// beyond is the machines' hourly cost beyond commitments.
func beyond(c *division.Commitments) (paid float64) {
	covered, _ := c.Shares()
	for i := range c.Groups {
		paid += c.Groups[i].Price * float64(c.Groups[i].Count) * (1 - covered[i].Part)
	}
	return paid
}

// properties of a fleet's bill when one more machine runs, and when more is committed.
func (r *random) properties(t *testing.T, seed uint64, report *cost.Report) {
	t.Helper()
	next := r.pick()
	m := one("blue", next.name, float(next.onDemand), 1)
	m.VCPUs, m.Memory = next.vcpus*1000, next.gib<<30
	marginal := report.Applied.MarginalPrice(&m.Priced)
	more := cost.Of(append(slices.Clone(r.machines), m), r.commitments, r.reservations)
	if costs := billOf(more) - billOf(report); costs < -rounding {
		t.Fatalf("seed %d: one more %s costs %g", seed, next.name, costs)
	}
	if len(r.commitments) == 0 && !equal(marginal, m.Price) {
		t.Fatalf("seed %d: nothing is committed, and %s costs %g", seed, next.name, marginal)
	}
	if !equal(marginal, billOf(more)-billOf(report)) {
		t.Fatalf("seed %d: one more %s costs %g, and its price is %g", seed, next.name, billOf(more)-billOf(report), marginal)
	}
	for i := range r.commitments {
		larger := slices.Clone(r.commitments)
		switch c := &larger[i]; c.Kind {
		case division.CommittedUse:
			c.CPU.Amount, c.Memory.Amount = c.CPU.Amount+3, c.Memory.Amount+5
		case division.SavingsPlan:
			c.HourlySpend += 0.1
		default:
			c.Instances++
		}
		after := cost.Of(r.machines, larger, r.reservations)
		if more, before := beyond(after.Applied), beyond(report.Applied); more > before+rounding {
			t.Fatalf("seed %d: %g is paid on demand when more of %s is committed, and %g before", seed, more, larger[i].Name, before)
		}
	}
}
