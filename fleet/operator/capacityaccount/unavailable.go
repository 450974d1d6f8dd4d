// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
)

const (
	// maxClosed is how long one cluster's report closes an offering for the others. Then it counts again after as long a time, so that no
	// report closes an offering for good.
	maxClosed = 5 * time.Minute
	// maxShared is the number of unavailable offerings in a lease.
	maxShared = 128
	// maxQuota is the length of the name of a quota.
	maxQuota = 253
)

// place is what one report closes: an instance type in a zone, or what an exhausted quota counts.
type place struct {
	instanceType, zone, capacityType string
	// quota and what it counts.
	quota  string
	counts autonodev1alpha1.PoolResource
}

// window is when a report counts.
type window struct {
	opened, until time.Time
	// atLeast is the smallest amount of a quota that is too much.
	atLeast int64
}

// unavailableReports are the reports of an account's clusters about offerings without capacity, by cluster.
type unavailableReports map[string]map[place]window

// post takes over what a cluster reports. The report is a tenant's program's: what it reports counts for a while at most,
// and no more than a report has room for.
func (u unavailableReports) post(cluster string, offerings []autonodev1alpha1.UnavailableOffering, now time.Time) {
	for _, o := range offerings[:min(len(offerings), autonodev1alpha1.MaxUnavailable)] {
		at, next := place{quota: o.Quota, counts: o.Counts}, window{opened: now, until: o.Until.At(), atLeast: max(0, o.AtLeast)}
		switch {
		case o.Quota == "":
			// Only a report about one offering counts; what more follows from it is decided here. A reservation is divided by leases.
			if o.InstanceType == "" || o.Zone == "" || strings.Contains(o.InstanceType, "*") ||
				o.CapacityType != "on-demand" && o.CapacityType != "spot" {
				continue
			}
			at, next.atLeast = place{instanceType: o.InstanceType, zone: o.Zone, capacityType: o.CapacityType}, 0
		case len(o.Quota) > maxQuota:
			continue
		}
		// Several quotas may count the same offering, so those of a cluster count and pause together, and so do later reports of offerings.
		for other, w := range u[cluster] {
			if other.quota != "" && now.Before(w.opened.Add(2*maxClosed)) && w.opened.Before(next.opened) {
				next.opened = w.opened
			}
		}
		before, known := u[cluster][at]
		switch {
		case known && now.Before(before.opened.Add(2*maxClosed)):
			next.opened, next.until = before.opened, maxTime(before.until, next.until)
		case !next.until.After(now) || !known && len(u[cluster]) >= autonodev1alpha1.MaxUnavailable:
			continue
		}
		if last := next.opened.Add(maxClosed); next.until.After(last) {
			next.until = last
		}
		if u[cluster] == nil {
			u[cluster] = map[place]window{}
		}
		u[cluster][at] = next
	}
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// expire forgets reports that count neither now nor against a repetition.
func (u unavailableReports) expire(now time.Time) {
	for cluster, reports := range u {
		maps.DeleteFunc(reports, func(_ place, w window) bool { return !now.Before(w.opened.Add(2 * maxClosed)) })
		if len(reports) == 0 {
			delete(u, cluster)
		}
	}
}

// closure is a place that reports close.
type closure struct {
	place
	by []closedBy
	// rank is the least position of the place among the reports of one cluster.
	rank int
}

// closedBy is a cluster's report; that of a zone is about one of its instance types.
type closedBy struct {
	window
	cluster, instanceType string
}

// closures returns the places that are closed now. Those that come first in the reports of any cluster are first: so no cluster crowds out
// others.
func (u unavailableReports) closures(now time.Time) []*closure {
	all := map[place]*closure{}
	add := func(at place, rank int, by closedBy) {
		if all[at] == nil {
			all[at] = &closure{place: at, rank: rank}
		}
		all[at].by, all[at].rank = append(all[at].by, by), min(all[at].rank, rank)
	}
	for cluster, reports := range u {
		for rank, at := range slices.SortedFunc(maps.Keys(reports), place.compare) {
			if w := reports[at]; now.Before(w.until) {
				add(at, rank, closedBy{window: w, cluster: cluster})
				if at.quota == "" {
					add(place{zone: at.zone, capacityType: at.capacityType}, rank, closedBy{w, cluster, at.instanceType})
				}
			}
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b *closure) int { return cmp.Or(cmp.Compare(a.rank, b.rank), a.compare(b.place)) })
}

func (p place) compare(other place) int {
	return cmp.Or(
		cmp.Compare(p.instanceType, other.instanceType), cmp.Compare(p.zone, other.zone), cmp.Compare(p.capacityType, other.capacityType),
		cmp.Compare(p.quota, other.quota), cmp.Compare(p.counts, other.counts))
}

// forCluster returns until when other clusters' reports close a place, and the smallest amount of a quota that is too much; false if they
// don't.
func (c *closure) forCluster(cluster string) (w window, closed bool) {
	types, reporters := map[string]time.Time{}, map[string]bool{}
	for _, by := range c.by {
		if by.cluster == cluster {
			continue
		}
		types[by.instanceType], reporters[by.cluster] = maxTime(types[by.instanceType], by.until), true
		if w.atLeast = min(w.atLeast, by.atLeast); !closed {
			w.atLeast = by.atLeast
		}
		w.until, closed = maxTime(w.until, by.until), true
	}
	if c.instanceType == "" && c.quota == "" { // a zone
		w.until, closed = capacity.ZoneUntil(c.zone, slices.Collect(maps.Values(types)))
		closed = closed && len(reporters) > 1
	}
	return w, closed
}

// unavailableFor returns what the other clusters' reports close for one, at most maxShared, in a fixed order.
func unavailableFor(cluster string, closures []*closure) (list []autonodev1alpha1.UnavailableOffering) {
	for _, c := range closures {
		w, closed := c.forCluster(cluster)
		if !closed || len(list) == maxShared {
			continue
		}
		reason := "Capacity"
		if c.quota != "" {
			reason = "Quota"
		}
		list = append(list, autonodev1alpha1.UnavailableOffering{
			InstanceType: c.instanceType, Zone: c.zone, CapacityType: c.capacityType, Reason: reason,
			Quota: c.quota, Counts: c.counts, AtLeast: w.atLeast, Until: scalar.NewTime(w.until.Truncate(time.Second)),
		})
	}
	slices.SortFunc(list, func(a, b autonodev1alpha1.UnavailableOffering) int { return placeOf(&a).compare(placeOf(&b)) })
	return list
}

func placeOf(o *autonodev1alpha1.UnavailableOffering) place {
	return place{instanceType: o.InstanceType, zone: o.Zone, capacityType: o.CapacityType, quota: o.Quota, counts: o.Counts}
}

// share takes over all reports of unavailable offerings, and reconciles again when the first of them ends.
func (r *reconciliation) share() []*closure {
	r.closed.expire(r.now)
	for _, key := range r.keys {
		if of := r.clusters[key]; of.lease != nil && of.member != nil {
			r.closed.post(key, of.lease.Status.Unavailable, r.now)
		}
	}
	closures := r.closed.closures(r.now)
	for _, c := range closures {
		for _, by := range c.by {
			r.requeue(by.until.Sub(r.now))
		}
	}
	return closures
}
