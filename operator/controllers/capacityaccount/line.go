// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/capacity/conversion"
)

// maxHeldFor is the number of clusters that the status of a pool names.
const maxHeldFor = 8

// held is the room that is kept free for requests that have waited, and whose those are, by pool.
func (r *reconciliation) held() (amounts capacity.Amounts, clusters map[string][]string) {
	amounts, clusters = capacity.Amounts{}, map[string][]string{}
	for _, key := range r.keys {
		place, waits := r.decision.Line[key]
		if !waits || !place.IsHeld() {
			continue
		}
		for pool, amount := range place.Charges {
			amounts[pool] += amount
			clusters[pool] = append(clusters[pool], key)
		}
	}
	return amounts, clusters
}

// recordHolds writes an event for each hold that has begun, or ended without serving the request.
func (r *reconciliation) recordHolds() {
	before := map[string]capacity.Place{}
	for i := range r.before.Clusters {
		if recorded := &r.before.Clusters[i]; recorded.Place != nil {
			before[recorded.Namespace+"/"+recorded.Name] = conversion.Place(recorded.Place)
		}
	}
	for _, key := range r.keys {
		now, was := r.decision.Line[key], before[key]
		switch {
		case now.IsHeld() && !was.IsHeld():
			r.Recorder.Eventf(r.found, nil, corev1.EventTypeNormal, autonodev1alpha1.RoomHeldReason, "DivideCapacity",
				"%s has waited since %s for %s: what becomes free is held for it", key, now.Since.UTC().Format("15:04:05"), r.describe(now.Charges))
		case !now.Rests.IsZero() && was.Rests.IsZero():
			lacking := "it hasn't used what was free"
			if len(now.Lacking) > 0 {
				lacking = r.describe(now.Lacking) + " did not become free"
			}
			r.Recorder.Eventf(r.found, nil, corev1.EventTypeWarning, autonodev1alpha1.HoldEndedReason, "DivideCapacity",
				"room was held for %s and its request of %s wasn't served, because %s; other requests are served again", key, r.describe(now.Charges), lacking)
		}
	}
}

// describe names amounts, such as "64 of quota/all/cpu".
func (r *reconciliation) describe(amounts capacity.Amounts) string {
	resources := map[string]autonodev1alpha1.PoolResource{}
	for i := range r.account.pools {
		resources[r.account.pools[i].Name] = r.account.pools[i].Resource
	}
	var texts []string
	for _, pool := range slices.Sorted(maps.Keys(amounts)) {
		if kind, shared := resources[pool]; shared { // a cluster's own limits are its own matter
			texts = append(texts, fmt.Sprintf("%s of %s", format(kind, amounts[pool]), pool))
		}
	}
	if len(texts) == 0 {
		return "its own limit"
	}
	return strings.Join(texts, ", ")
}
