// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/fleet/conversion"
	"github.com/autonode-io/autonode/fleet/cost"
	"github.com/autonode-io/autonode/fleet/division"
)

const (
	// turn is how long one cluster is offered the part that can't be divided among all: the rest of a commitment that is less than a
	// machine for each.
	turn = 5 * time.Minute
	// maxCounted is the number of entries that a lease has of the cluster's counted machines.
	maxCounted = 512
)

// Cost returns the costs of an account's machines, by the clusters' namespaces and names; nil until they are counted. Don't modify it.
func (c *Controller) Cost(account string) *cost.Report {
	report, _ := c.reports.Load(account)
	counted, _ := report.(*cost.Report)
	return counted
}

// spend sums up the costs of the machines of the account's clusters.
func (r *reconciliation) spend() {
	r.spending = cost.Of(r.costs, r.account.commitments, conversion.ReservationsAt(&r.found.Spec, r.now))
	r.reports.Store(r.found.Name, r.spending)
}

// commitments are an account's commitments beside its machines, as leases have them.
type commitments struct {
	*cost.Report
	// leased are the commitments with all that is unused, and machines those of all clusters.
	leased   []autonodev1alpha1.LeasedCommitment
	machines []autonodev1alpha1.CommittedMachines
	// clusters that share the unused part, in order, and turn is the index of the one that is offered the rest.
	clusters []string
	turn     int
}

// committed returns the commitments for the clusters that have a lease; nil if there are none.
func (r *reconciliation) committed() *commitments {
	if len(r.account.commitments) == 0 {
		return nil
	}
	c := &commitments{Report: r.spending, machines: conversion.LeasedMachines(r.spending.Applied)}
	for i := range r.account.commitments {
		read, specs := &r.account.commitments[i], r.found.Spec.Commitments
		at := slices.IndexFunc(specs, func(spec autonodev1alpha1.CapacityCommitment) bool { return spec.Name == read.Name })
		c.leased = append(c.leased, conversion.Leased(&specs[at], read))
	}
	for _, key := range r.keys {
		if cluster := r.clusters[key]; cluster.member != nil && cluster.lease != nil {
			c.clusters = append(c.clusters, key)
		}
	}
	if n := len(c.clusters); n > 1 {
		c.turn = int(r.now.Unix() / int64(turn.Seconds()) % int64(n))
		if slices.ContainsFunc(c.Commitments, func(use cost.CommitmentUse) bool { return use.Unused > 0 }) {
			r.requeue(r.now.Truncate(turn).Add(turn).Sub(r.now))
		}
	}
	return c
}

// share is a cluster's part of an unused amount: as many whole machines as every other, and the rest if it is its turn.
func (c *commitments) share(unused, machine float64, at int) float64 {
	n := float64(len(c.clusters))
	if !(machine > 0) {
		return unused / n
	}
	each := math.Floor(unused/machine/n) * machine
	if at == c.turn {
		return unused - each*(n-1)
	}
	return each
}

// leasedTo returns the commitments for a cluster, without the unused part that other clusters may use. Otherwise all of them would launch
// machines for the same part.
func (c *commitments) leasedTo(key string) []autonodev1alpha1.LeasedCommitment {
	at := slices.Index(c.clusters, key)
	if at < 0 {
		return nil
	}
	leased := slices.Clone(c.leased)
	for _, use := range c.Commitments {
		machine := use.Largest
		if use.Unit == division.Instances {
			machine = 1
		}
		conversion.SetOthers(&leased[use.Index], use.Unit, use.Unused-c.share(use.Unused, machine, at))
	}
	return leased
}

// counted are a cluster's machines that commitments may cover. Reserved ones are billed whether they run or not.
func (r *reconciliation) counted(key string, c *commitments) []autonodev1alpha1.CountedMachines {
	counts := map[capacity.Offering]int64{}
	for i := range r.costs {
		m := &r.costs[i]
		if m.Cluster == key && m.Reservation == "" && c.Applied.Covered(&m.Priced) {
			counts[c.Applied.Distinct(m.Offering)] += m.Count
		}
	}
	offerings := slices.SortedFunc(maps.Keys(counts), func(a, b capacity.Offering) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), a.Compare(b))
	})
	var list []autonodev1alpha1.CountedMachines
	for _, o := range offerings[:min(len(offerings), maxCounted)] {
		list = append(list, autonodev1alpha1.CountedMachines{
			InstanceType: o.InstanceType, Zone: o.Zone, CapacityType: o.CapacityType, Catalog: o.Catalog, Count: counts[o],
		})
	}
	return list
}
