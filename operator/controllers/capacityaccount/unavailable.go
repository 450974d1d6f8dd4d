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
	// maxFamily is the length of a family's name.
	maxFamily = 253
	// quotaExhausted is the reason that closes a family of instance types: clouds count quotas by families.
	quotaExhausted = "Quota"
)

// place is what one report closes: an instance type in a zone or, if a quota is exhausted, a family in all zones.
type place struct{ instanceType, family, zone, capacityType, reason string }

// report of one cluster about one place.
type report struct {
	cluster string
	place
}

// window is when a report counts.
type window struct {
	opened, until time.Time
	// instanceType is one of the family's, for a Karpenter that knows no families.
	instanceType string
}

// unavailableReports are the reports of an account's clusters about offerings without capacity.
type unavailableReports map[report]window

// post takes over what a cluster reports. The report is a tenant's program's: what it says counts for a while at most.
func (u unavailableReports) post(cluster string, offerings []autonodev1alpha1.UnavailableOffering, now time.Time) {
	for _, o := range offerings[:min(len(offerings), autonodev1alpha1.MaxUnavailable)] {
		// Only a report about one offering counts; what more follows from it is decided here. A reservation is divided by leases.
		if o.InstanceType == "" || o.Zone == "" || strings.Contains(o.InstanceType, "*") || o.CapacityType != "on-demand" && o.CapacityType != "spot" {
			continue
		}
		key := report{cluster, place{instanceType: o.InstanceType, zone: o.Zone, capacityType: o.CapacityType}}
		if o.Reason == quotaExhausted {
			// Reports of one family's instance types and zones are one report. Otherwise a cluster that alternates between them would close the
			// family for good.
			key.place = place{family: capacity.Family(o.Family, o.InstanceType), capacityType: o.CapacityType, reason: quotaExhausted}
			if len(key.family) > maxFamily {
				continue
			}
		}
		until := o.Until.At()
		if last := now.Add(maxClosed); until.After(last) {
			until = last
		}
		before, known := u[key]
		switch {
		case known && now.Before(before.opened.Add(2*maxClosed)):
			if last := before.opened.Add(maxClosed); until.After(last) {
				until = last
			}
			before.until = maxTime(before.until, until)
			before.instanceType = min(before.instanceType, o.InstanceType)
			u[key] = before
		case until.After(now):
			u[key] = window{now, until, o.InstanceType}
		}
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
	closed := map[place]time.Time{}
	families := map[place]string{}
	zones := map[place]map[string]time.Time{}
	reporters := map[place]map[string]bool{}
	for r, w := range u {
		if !now.Before(w.until) || r.cluster == cluster {
			continue
		}
		at := r.place
		if at.reason == quotaExhausted {
			if first := families[at]; first == "" || w.instanceType < first {
				families[at] = w.instanceType
			}
		} else {
			zone := place{zone: at.zone, capacityType: at.capacityType}
			if zones[zone] == nil {
				zones[zone], reporters[zone] = map[string]time.Time{}, map[string]bool{}
			}
			zones[zone][at.instanceType] = maxTime(zones[zone][at.instanceType], w.until)
			reporters[zone][r.cluster] = true
		}
		closed[at] = maxTime(closed[at], w.until)
	}
	for zone, types := range zones {
		if until, ok := capacity.ZoneUntil(zone.zone, slices.Collect(maps.Values(types))); ok && len(reporters[zone]) > 1 {
			closed[zone] = until
		}
	}
	var list []autonodev1alpha1.UnavailableOffering
	for at, until := range closed {
		list = append(list, autonodev1alpha1.UnavailableOffering{
			InstanceType: cmp.Or(at.instanceType, families[at]), Family: at.family, Zone: at.zone, CapacityType: at.capacityType, Reason: cmp.Or(at.reason, "Capacity"), Until: scalar.NewTime(until.Truncate(time.Second)),
		})
	}
	slices.SortFunc(list, func(x, y autonodev1alpha1.UnavailableOffering) int {
		return cmp.Or(cmp.Compare(x.InstanceType, y.InstanceType), cmp.Compare(x.Family, y.Family), cmp.Compare(x.Zone, y.Zone), cmp.Compare(x.CapacityType, y.CapacityType), cmp.Compare(x.Reason, y.Reason))
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
