// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/capacity/conversion"
)

const (
	// turn is how long one cluster is offered the part that can't be divided among all: the rest of a commitment that is less than a
	// machine for each.
	turn = 5 * time.Minute
	// maxCounted is the number of entries that a lease has of the cluster's counted machines.
	maxCounted = 512
)

// commitments are the parts of an account's commitments that no cluster's machines use.
type commitments struct {
	covers []capacity.Cover
	// machine is the most that a machine uses of each; zero if nothing runs that shows it.
	machine []float64
	// clusters that share it, in order, and turn is whose turn it is.
	clusters []string
	turn     int
}

// committed returns the unused commitments for the clusters that have a lease.
func (r *reconciliation) committed() *commitments {
	c := &commitments{}
	if len(r.account.commitments) == 0 {
		return c
	}
	groups := make([]capacity.Group, len(r.costs))
	for i := range r.costs {
		groups[i] = capacity.Group{Running: runningOf(&r.costs[i].Offering, r.costs[i].List, r.costs[i].VCPUs, r.costs[i].Memory), Count: r.costs[i].Count}
	}
	for _, cover := range r.spending.Applied.Covers() {
		if cover.Rates != nil && len(cover.Rates) == 0 && cover.Discount == 0 {
			continue // its rates aren't read yet
		}
		machine := 1.0
		if cover.Measure != capacity.Instances {
			machine = cover.Largest(groups)
		}
		c.covers, c.machine = append(c.covers, cover), append(c.machine, machine)
	}
	for _, key := range r.keys {
		if of := r.clusters[key]; of.member != nil && of.lease != nil {
			c.clusters = append(c.clusters, key)
		}
	}
	if n := len(c.clusters); n > 1 {
		c.turn = int(r.now.Unix() / int64(turn.Seconds()) % int64(n))
		if slices.ContainsFunc(c.covers, func(cover capacity.Cover) bool { return cover.Left > 0 }) {
			r.requeue(r.now.Truncate(turn).Add(turn).Sub(r.now))
		}
	}
	return c
}

func runningOf(o *capacity.Offering, price float64, vcpus, memory int64) capacity.Running {
	return capacity.Running{Offering: *o, Price: price, VCPUs: vcpus, Memory: memory}
}

// share is a cluster's part of the unused amount: as many whole machines as every other, and the rest if it is its turn.
func (c *commitments) share(left, machine float64, at int) float64 {
	n := float64(len(c.clusters))
	if n <= 1 {
		return left
	}
	if !(machine > 0) {
		return left / n
	}
	each := math.Floor(left/machine/n) * machine
	if at == c.turn {
		return left - each*(n-1)
	}
	return each
}

// leasedTo returns a cluster's part of the unused commitments, rounded down, and the amounts that the machines of all lack, rounded up.
func (c *commitments) leasedTo(key string) []autonodev1alpha1.LeasedCommitment {
	at := slices.Index(c.clusters, key)
	if at < 0 {
		return nil
	}
	var leased []autonodev1alpha1.LeasedCommitment
	for i := range c.covers {
		cover := c.covers[i]
		cover.Displaced, cover.Gained = roughly(cover.Displaced, math.Round), roughly(cover.Gained, math.Round)
		if cover.Left > 0 {
			cover.Displaced = 0
		}
		leased = append(leased, conversion.Leased(&cover, roughly(c.share(cover.Left, c.machine[i], at), math.Floor), roughly(cover.Uncovered, math.Ceil)))
	}
	return leased
}

// counted are a cluster's machines that unused commitments could have covered.
func (r *reconciliation) counted(key string, c *commitments) []autonodev1alpha1.CountedMachines {
	counts := map[autonodev1alpha1.CountedMachines]int64{}
	for i := range r.costs {
		m := &r.costs[i]
		if m.Cluster != key || m.Reservation != "" {
			continue
		}
		running := runningOf(&m.Offering, m.List, m.VCPUs, m.Memory)
		if slices.ContainsFunc(c.covers, func(cover capacity.Cover) bool { return cover.Left > 0 && cover.Applies(&running) }) {
			counts[autonodev1alpha1.CountedMachines{InstanceType: m.InstanceType, Zone: m.Zone, CapacityType: m.CapacityType}] += m.Count
		}
	}
	var list []autonodev1alpha1.CountedMachines
	for of, count := range counts {
		of.Count = int32(min(count, math.MaxInt32))
		list = append(list, of)
	}
	slices.SortFunc(list, func(a, b autonodev1alpha1.CountedMachines) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.InstanceType, b.InstanceType), cmp.Compare(a.Zone, b.Zone), cmp.Compare(a.CapacityType, b.CapacityType))
	})
	return list[:min(len(list), maxCounted)]
}

// roughly rounds to two digits, so that leases don't change with each machine.
func roughly(amount float64, round func(float64) float64) float64 {
	if !(amount > 0) {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(amount))-1)
	rounded, err := strconv.ParseFloat(strconv.FormatFloat(round(math.Round(amount/unit*1e6)/1e6)*unit, 'g', 2, 64), 64)
	if err != nil {
		return 0
	}
	return rounded
}
