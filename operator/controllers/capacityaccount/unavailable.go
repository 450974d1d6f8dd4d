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
	// maxFamily is the length of the name of a family, or of a quota.
	maxFamily = 253
	// quotaExhausted is the reason that closes all offerings that a quota counts. A Karpenter that doesn't say which quota means a family.
	quotaExhausted = "Quota"
)

// place is what one report closes: an instance type in a zone or, if a quota is exhausted, all that this counts, or a family in all zones.
type place struct {
	instanceType, family, zone, capacityType, reason string
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
	// instanceType is one of the family's, for a Karpenter without families.
	instanceType string
	// family and capacityType of an offering that the quota counts, for a Karpenter without quotas, and what machines need at least that
	// it is closed for.
	family, capacityType string
	atLeast              int64
}

// unavailableReports are the reports of an account's clusters about offerings without capacity.
type unavailableReports map[report]window

// post takes over what a cluster reports. The report is a tenant's program's: what it reports counts for a while at most.
func (u unavailableReports) post(cluster string, offerings []autonodev1alpha1.UnavailableOffering, now time.Time) {
	posted := map[report]bool{}
	for _, o := range offerings[:min(len(offerings), autonodev1alpha1.MaxUnavailable)] {
		// Only a report about one offering counts; what more follows from it is decided here. A reservation is divided by leases.
		if o.InstanceType == "" || o.Zone == "" || strings.Contains(o.InstanceType, "*") || o.CapacityType != "on-demand" && o.CapacityType != "spot" {
			continue
		}
		key, opens := report{cluster, place{instanceType: o.InstanceType, zone: o.Zone, capacityType: o.CapacityType}}, window{instanceType: o.InstanceType}
		until := o.Until.At()
		switch family := capacity.Family(o.Family, o.InstanceType); {
		case o.Reason == quotaExhausted && (len(family) > maxFamily || len(o.Quota) > maxFamily):
			continue
		case o.Reason == quotaExhausted && o.Quota != "":
			key.place = place{reason: quotaExhausted, quota: o.Quota, counts: o.Counts}
			opens.family, opens.capacityType, opens.atLeast = family, o.CapacityType, max(0, o.AtLeast)
			until = until.Add(capacity.ProbeFirst)
		case o.Reason == quotaExhausted:
			// Reports of one family's instance types and zones are one report. Otherwise a cluster that alternates between them would close the
			// family for good.
			key.place = place{family: family, capacityType: o.CapacityType, reason: quotaExhausted}
		}
		if last := now.Add(maxClosed); until.After(last) {
			until = last
		}
		posted[key] = true
		before, known := u[key]
		switch {
		case known && now.Before(before.opened.Add(2*maxClosed)):
			if last := before.opened.Add(maxClosed); until.After(last) {
				until = last
			}
			opens.opened, opens.until, opens.instanceType = before.opened, until, min(before.instanceType, o.InstanceType)
			if key.quota == "" {
				opens.until = maxTime(before.until, until)
			}
			u[key] = opens
		case until.After(now):
			opens.opened, opens.until = now, until
			u[key] = opens
		}
	}
	// Once the cluster has launched a machine of a quota, that is open for all.
	for key, w := range u {
		if key.cluster == cluster && key.quota != "" && !posted[key] && now.Before(w.until) {
			w.until = now
			u[key] = w
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
	// examples are offerings of the families and quotas, for a Karpenter that doesn't know these.
	examples := map[place]window{}
	zones := map[place]map[string]time.Time{}
	reporters := map[place]map[string]bool{}
	for r, w := range u {
		if !now.Before(w.until) || r.cluster == cluster {
			continue
		}
		at := r.place
		if at.reason == quotaExhausted {
			first, known := examples[at]
			if !known || w.instanceType < first.instanceType {
				first.instanceType, first.family, first.capacityType = w.instanceType, w.family, w.capacityType
			}
			if !known || w.atLeast < first.atLeast {
				first.atLeast = w.atLeast
			}
			examples[at] = first
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
		of := examples[at]
		list = append(list, autonodev1alpha1.UnavailableOffering{
			InstanceType: cmp.Or(at.instanceType, of.instanceType), Family: cmp.Or(at.family, of.family), Zone: at.zone, CapacityType: cmp.Or(at.capacityType, of.capacityType),
			Reason: cmp.Or(at.reason, "Capacity"), Quota: at.quota, Counts: at.counts, AtLeast: of.atLeast, Until: scalar.NewTime(until.Truncate(time.Second)),
		})
	}
	slices.SortFunc(list, func(x, y autonodev1alpha1.UnavailableOffering) int {
		return cmp.Or(cmp.Compare(x.InstanceType, y.InstanceType), cmp.Compare(x.Family, y.Family), cmp.Compare(x.Zone, y.Zone), cmp.Compare(x.CapacityType, y.CapacityType),
			cmp.Compare(x.Reason, y.Reason), cmp.Compare(x.Quota, y.Quota), cmp.Compare(x.Counts, y.Counts))
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
