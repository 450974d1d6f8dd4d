// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"cmp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/v1alpha1"
)

const (
	// maxClosed is how long one cluster's report closes an offering for the others. Then it counts again after as long a time, so that no
	// report closes an offering for good.
	maxClosed = 5 * time.Minute
	// wholeZone is how many instance types of a zone are to be unavailable, by reports of several clusters, for all of them to be.
	wholeZone = 4
	// maxShared is the number of unavailable offerings in a lease.
	maxShared = 128
	// quotaExhausted is the reason that closes a family of instance types: clouds count quotas by families.
	quotaExhausted = "Quota"
)

// place is what one report closes.
type place struct{ instanceType, zone, capacityType, reason string }

// report of one cluster about one place.
type report struct {
	cluster string
	place
}

// window is when a report counts.
type window struct{ opened, until time.Time }

// board has the reports of an account's clusters about offerings without capacity.
type board map[report]window

// post takes over what a cluster reports. The report is a tenant's program's: what it says counts for a while at most.
func (b board) post(cluster string, offerings []v1alpha1.UnavailableOffering, now time.Time) {
	for _, o := range offerings[:min(len(offerings), v1alpha1.MaxUnavailable)] {
		// Only a report about one offering counts; what more follows from it is decided here. A reservation is divided by leases.
		if o.InstanceType == "" || o.Zone == "" || strings.Contains(o.InstanceType, "*") || o.CapacityType != "on-demand" && o.CapacityType != "spot" {
			continue
		}
		if o.Reason != quotaExhausted {
			o.Reason = ""
		}
		key := report{cluster, place{o.InstanceType, o.Zone, o.CapacityType, o.Reason}}
		until := o.Until.Time
		if last := now.Add(maxClosed); until.After(last) {
			until = last
		}
		before, known := b[key]
		switch {
		case known && now.Before(before.opened.Add(2*maxClosed)):
			if last := before.opened.Add(maxClosed); until.After(last) {
				until = last
			}
			b[key] = window{before.opened, maxTime(before.until, until)}
		case until.After(now):
			b[key] = window{now, until}
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
func (b board) expire(now time.Time) {
	for key, w := range b {
		if !now.Before(w.opened.Add(2 * maxClosed)) {
			delete(b, key)
		}
	}
}

// forCluster returns what the other clusters' reports close for one, at most maxShared, in a fixed order.
func (b board) forCluster(cluster string, now time.Time) []v1alpha1.UnavailableOffering {
	closed := map[place]time.Time{}
	zones := map[place]map[string]time.Time{}
	reporters := map[place]map[string]bool{}
	for r, w := range b {
		if !now.Before(w.until) || r.cluster == cluster {
			continue
		}
		at := r.place
		if at.reason == quotaExhausted {
			if family, _, ok := strings.Cut(at.instanceType, "."); ok {
				at.instanceType, at.zone = family+".*", ""
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
		if len(types) < wholeZone || len(reporters[zone]) < 2 {
			continue
		}
		var first time.Time
		for _, until := range types {
			if first.IsZero() || until.Before(first) {
				first = until
			}
		}
		closed[zone] = first
	}
	var list []v1alpha1.UnavailableOffering
	for at, until := range closed {
		list = append(list, v1alpha1.UnavailableOffering{
			InstanceType: at.instanceType, Zone: at.zone, CapacityType: at.capacityType, Reason: cmp.Or(at.reason, "Capacity"), Until: metav1.NewTime(until.Truncate(time.Second)),
		})
	}
	slices.SortFunc(list, func(x, y v1alpha1.UnavailableOffering) int {
		return cmp.Or(cmp.Compare(x.InstanceType, y.InstanceType), cmp.Compare(x.Zone, y.Zone), cmp.Compare(x.CapacityType, y.CapacityType), cmp.Compare(x.Reason, y.Reason))
	})
	return list[:min(len(list), maxShared)]
}

// share takes over all reports of unavailable offerings, and reconciles again when the first of them ends.
func (r *round) share() board {
	r.closed.expire(r.now)
	for _, key := range r.keys {
		if of := r.clusters[key]; of.lease != nil && of.member != nil {
			r.closed.post(key, of.lease.Status.Unavailable, r.now)
		}
	}
	for _, w := range r.closed {
		if w.until.After(r.now) {
			r.wake(w.until.Sub(r.now))
		}
	}
	return r.closed
}
