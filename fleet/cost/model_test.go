// SPDX-License-Identifier: Apache-2.0

package cost_test

import (
	"fmt"
	"math/big"
	"slices"
)

// The model bills a fleet as the clouds publish it, in exact fractions. It shares no code with packages division and cost, and has the
// sizes and the series of its own few types in itself.

func rat(a, b int64) *big.Rat { return big.NewRat(a, b) }

func times(a, b *big.Rat) *big.Rat { return new(big.Rat).Mul(a, b) }

func over(a, b *big.Rat) *big.Rat { return new(big.Rat).Quo(a, b) }

func least(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) < 0 {
		return new(big.Rat).Set(a)
	}
	return new(big.Rat).Set(b)
}

// modelType is a machine type of the model: with its size in its series, and what Google Cloud bills.
type modelType struct {
	name, series string
	size         int64
	onDemand     *big.Rat
	vcpus, gib   int64
}

var modelTypes = map[string][]modelType{
	"aws": {
		{name: "m5.large", series: "m5", size: 4, onDemand: rat(96, 1000)},
		{name: "m5.xlarge", series: "m5", size: 8, onDemand: rat(192, 1000)},
		{name: "m5.4xlarge", series: "m5", size: 32, onDemand: rat(768, 1000)},
		{name: "c5.large", series: "c5", size: 4, onDemand: rat(85, 1000)},
		{name: "c5.9xlarge", series: "c5", size: 72, onDemand: rat(1530, 1000)},
	},
	"azure": {
		{name: "Standard_D2s_v5", series: "Dsv5", size: 2, onDemand: rat(96, 1000)},
		{name: "Standard_D4s_v5", series: "Dsv5", size: 4, onDemand: rat(192, 1000)},
		{name: "Standard_D8s_v5", series: "Dsv5", size: 8, onDemand: rat(384, 1000)},
		{name: "Standard_E4s_v5", series: "Esv5", size: 4, onDemand: rat(252, 1000)},
	},
	"gcp": {
		{name: "n2-standard-4", series: "n2", vcpus: 4, gib: 16, onDemand: rat(4*32+16*4, 1000)},
		{name: "n2-highmem-2", series: "n2", vcpus: 2, gib: 16, onDemand: rat(2*32+16*4, 1000)},
		{name: "n2-highcpu-8", series: "n2", vcpus: 8, gib: 8, onDemand: rat(8*32+8*4, 1000)},
		{name: "e2-standard-4", series: "e2", vcpus: 4, gib: 16, onDemand: rat(4*22+16*3, 1000)},
	},
}

// Google Cloud's list prices of n2: a vCPU and a GiB.
var n2CPU, n2GiB = rat(32, 1000), rat(4, 1000)

// modelUsage is what runs in an hour, or is reserved and idle.
type modelUsage struct {
	modelType
	cluster string
	spot    bool
	price   *big.Rat
	// machines that aren't covered yet; of Google Cloud's n2, vCPUs and GiB.
	machines, cpus, gibs *big.Rat
}

type modelCommitment struct {
	kind string
	// amount is money, or a number of instances, or of vCPUs.
	amount *big.Rat
	gib    *big.Rat
	// price of an instance, a vCPU, and gibPrice of a GiB.
	price, gibPrice *big.Rat
	// of is the type of an instance, or the series of a plan.
	covers   string
	flexible bool
	rates    map[string]*big.Rat
}

// modelBill is what a fleet costs.
type modelBill struct {
	waste *big.Rat
	// paid by cluster and type; the cluster of what is idle is empty.
	paid map[string]*big.Rat
}

func (b *modelBill) pay(u *modelUsage, amount *big.Rat) {
	at := u.cluster + "|" + u.name
	if u.cluster == "" {
		b.waste.Add(b.waste, amount)
		return
	}
	if b.paid[at] == nil {
		b.paid[at] = new(big.Rat)
	}
	b.paid[at].Add(b.paid[at], amount)
}

// open is what isn't covered of a usage, in machines.
func (u *modelUsage) open() *big.Rat {
	if u.cpus == nil {
		return u.machines
	}
	rest := new(big.Rat).Add(times(u.cpus, n2CPU), times(u.gibs, n2GiB))
	return over(rest, u.price)
}

func (u *modelUsage) cover(machines *big.Rat) {
	if u.cpus == nil {
		u.machines.Sub(u.machines, machines)
		return
	}
	rest := over(new(big.Rat).Sub(u.open(), machines), u.open())
	u.cpus.Mul(u.cpus, rest)
	u.gibs.Mul(u.gibs, rest)
}

// bill bills usage. Instances come first, in the order that they are given in, then plans for a series, then the others.
func bill(usage []*modelUsage, commitments []modelCommitment) *modelBill {
	b := &modelBill{waste: new(big.Rat), paid: map[string]*big.Rat{}}
	for _, kind := range []string{"instances", "series", "compute"} {
		for i := range commitments {
			c := &commitments[i]
			switch {
			case kind == "instances" && c.kind == "instances":
				b.instances(usage, c)
			case kind == "instances" && c.kind == "resources":
				b.resources(usage, c)
			case c.kind == kind:
				b.plan(usage, c)
			}
		}
	}
	for _, u := range usage {
		b.pay(u, times(u.open(), u.price))
	}
	return b
}

// instances cover machines that run before what is idle, and the smallest size of their series first.
func (b *modelBill) instances(usage []*modelUsage, c *modelCommitment) {
	var base modelType
	var sizes []modelType
	for _, all := range modelTypes {
		for _, t := range all {
			if t.name == c.covers {
				base, sizes = t, all
			}
		}
	}
	rest := times(c.amount, rat(base.size, 1))
	unit := over(c.price, rat(base.size, 1))
	sizes = slices.Clone(sizes)
	slices.SortFunc(sizes, func(a, b modelType) int { return int(a.size - b.size) })
	for _, idle := range []bool{false, true} {
		for _, t := range sizes {
			if t.name == c.covers || c.flexible && t.series == base.series {
				b.share(usage, t.name, idle, rest, rat(t.size, 1), unit)
			}
		}
	}
	b.waste.Add(b.waste, times(rest, unit))
}

// share covers machines of a type equally, those that run or those that are idle: each takes this much of left, of which a unit costs this.
func (b *modelBill) share(usage []*modelUsage, name string, idle bool, rest, each, unit *big.Rat) {
	total := new(big.Rat)
	var users []*modelUsage
	for _, u := range usage {
		if u.name == name && !u.spot && (u.cluster == "") == idle && u.open().Sign() > 0 {
			users, total = append(users, u), total.Add(total, u.open())
		}
	}
	if len(users) == 0 {
		return
	}
	fraction := least(rat(1, 1), over(rest, times(total, each)))
	for _, u := range users {
		part := times(u.open(), fraction)
		u.cover(part)
		rest.Sub(rest, times(part, each))
		b.pay(u, times(times(part, each), unit))
	}
}

// resources cover vCPUs and memory of n2, each separately.
func (b *modelBill) resources(usage []*modelUsage, c *modelCommitment) {
	for _, resource := range []struct {
		amount, price *big.Rat
		amountOf      func(*modelUsage) *big.Rat
	}{{c.amount, c.price, func(u *modelUsage) *big.Rat { return u.cpus }}, {c.gib, c.gibPrice, func(u *modelUsage) *big.Rat { return u.gibs }}} {
		rest := new(big.Rat).Set(resource.amount)
		for _, idle := range []bool{false, true} {
			total := new(big.Rat)
			var users []*modelUsage
			for _, u := range usage {
				if u.cpus != nil && !u.spot && (u.cluster == "") == idle {
					users, total = append(users, u), total.Add(total, resource.amountOf(u))
				}
			}
			if total.Sign() == 0 {
				continue
			}
			fraction := least(rat(1, 1), over(rest, total))
			for _, u := range users {
				part := times(resource.amountOf(u), fraction)
				b.pay(u, times(part, resource.price))
				rest.Sub(rest, part)
				resource.amountOf(u).Sub(resource.amountOf(u), part)
			}
		}
		b.waste.Add(b.waste, times(rest, resource.price))
	}
}

// plan covers machines that run before what is idle: first the type that it saves most on, and among equals the one with the lowest rate.
func (b *modelBill) plan(usage []*modelUsage, c *modelCommitment) {
	rest := new(big.Rat).Set(c.amount)
	var types []modelType
	for _, u := range usage {
		if _, rated := c.rates[u.name]; rated && !u.spot && (c.covers == "" || c.covers == u.series) &&
			!slices.ContainsFunc(types, func(t modelType) bool { return t.name == u.name }) {
			types = append(types, u.modelType)
		}
	}
	slices.SortFunc(types, func(x, y modelType) int {
		if order := over(c.rates[x.name], x.onDemand).Cmp(over(c.rates[y.name], y.onDemand)); order != 0 {
			return order
		}
		if order := c.rates[x.name].Cmp(c.rates[y.name]); order != 0 {
			return order
		}
		return slices.Compare([]byte(x.name), []byte(y.name))
	})
	for _, idle := range []bool{false, true} {
		for _, t := range types {
			b.share(usage, t.name, idle, rest, c.rates[t.name], rat(1, 1))
		}
	}
	b.waste.Add(b.waste, rest)
}

func (b *modelBill) String() string {
	text := fmt.Sprint("waste ", b.waste.FloatString(6))
	for at, paid := range b.paid {
		text += fmt.Sprint("; ", at, " ", paid.FloatString(6))
	}
	return text
}
