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

// report of one cluster about one place.
type report struct {
	cluster string
	place
}

// window is when a report counts.
type window struct {
	opened, until time.Time
	// atLeast is the smallest amount of a quota that is too much.
	atLeast int64
}

// unavailableReports are the reports of an account's clusters about offerings without capacity.
type unavailableReports map[report]window

// post takes over what a cluster reports. The report is a tenant's program's: what it reports counts for a while at most.
func (u unavailableReports) post(cluster string, offerings []autonodev1alpha1.UnavailableOffering, now time.Time) {
	for _, o := range offerings[:min(len(offerings), autonodev1alpha1.MaxUnavailable)] {
		key, next := report{cluster, place{quota: o.Quota, counts: o.Counts}}, window{opened: now, until: o.Until.At(), atLeast: max(0, o.AtLeast)}
		switch {
		case o.Quota == "":
			// Only a report about one offering counts; what more follows from it is decided here. A reservation is divided by leases.
			if o.InstanceType == "" || o.Zone == "" || strings.Contains(o.InstanceType, "*") || o.CapacityType != "on-demand" && o.CapacityType != "spot" {
				continue
			}
			key.place, next.atLeast = place{instanceType: o.InstanceType, zone: o.Zone, capacityType: o.CapacityType}, 0
		case len(o.Quota) > maxQuota:
			continue
		}
		before, known := u[key]
		if repeated := known && now.Before(before.opened.Add(2*maxClosed)); repeated {
			next.opened, next.until = before.opened, maxTime(before.until, next.until)
		} else if !next.until.After(now) {
			continue
		}
		if last := next.opened.Add(maxClosed); next.until.After(last) {
			next.until = last
		}
		u[key] = next
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
	for key, w := range u {
		if !now.Before(w.opened.Add(2 * maxClosed)) {
			delete(u, key)
		}
	}
}

// forCluster returns what the other clusters' reports close for one, at most maxShared, in a fixed order.
func (u unavailableReports) forCluster(cluster string, now time.Time) []autonodev1alpha1.UnavailableOffering {
	closed := map[place]window{}
	zones := map[place]map[string]time.Time{}
	reporters := map[place]map[string]bool{}
	for r, w := range u {
		if !now.Before(w.until) || r.cluster == cluster {
			continue
		}
		if r.quota == "" {
			zone := place{zone: r.zone, capacityType: r.capacityType}
			if zones[zone] == nil {
				zones[zone], reporters[zone] = map[string]time.Time{}, map[string]bool{}
			}
			zones[zone][r.instanceType] = maxTime(zones[zone][r.instanceType], w.until)
			reporters[zone][r.cluster] = true
		}
		if other, known := closed[r.place]; known {
			w.until, w.atLeast = maxTime(w.until, other.until), min(w.atLeast, other.atLeast)
		}
		closed[r.place] = w
	}
	for zone, types := range zones {
		if until, ok := capacity.ZoneUntil(zone.zone, slices.Collect(maps.Values(types))); ok && len(reporters[zone]) > 1 {
			closed[zone] = window{until: until}
		}
	}
	var list []autonodev1alpha1.UnavailableOffering
	for at, w := range closed {
		reason := "Capacity"
		if at.quota != "" {
			reason = "Quota"
		}
		list = append(list, autonodev1alpha1.UnavailableOffering{
			InstanceType: at.instanceType, Zone: at.zone, CapacityType: at.capacityType, Reason: reason,
			Quota: at.quota, Counts: at.counts, AtLeast: w.atLeast, Until: scalar.NewTime(w.until.Truncate(time.Second)),
		})
	}
	slices.SortFunc(list, func(x, y autonodev1alpha1.UnavailableOffering) int {
		return cmp.Or(cmp.Compare(x.InstanceType, y.InstanceType), cmp.Compare(x.Zone, y.Zone), cmp.Compare(x.CapacityType, y.CapacityType),
			cmp.Compare(x.Quota, y.Quota), cmp.Compare(x.Counts, y.Counts))
	})
	return list[:min(len(list), maxShared)]
}

// share takes over all reports of unavailable offerings, and reconciles again when the first of them ends.
func (r *reconciliation) share() unavailableReports {
	r.closed.expire(r.now)
	for _, key := range r.keys {
		if of := r.clusters[key]; of.lease != nil && of.member != nil {
			r.closed.post(key, of.lease.Status.Unavailable, r.now)
		}
	}
	for _, w := range r.closed {
		if w.until.After(r.now) {
			r.requeue(w.until.Sub(r.now))
		}
	}
	return r.closed
}
