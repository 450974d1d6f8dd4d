// SPDX-License-Identifier: Apache-2.0

package nodeclass

import "time"

// DefaultAvailabilityDelay is the least time between two reconciles for changed availability. Each may write the node
// class's status, and every such write makes Karpenter core reconcile all NodeClaims of the node class, which don't
// depend on availability.
const DefaultAvailabilityDelay = time.Minute

// debounce lets the first of many changes pass at once, and merges the others. It isn't safe for concurrent use.
type debounce struct {
	interval time.Duration
	// due is when the last reconcile was due, or will be.
	due time.Time
}

// next returns the delay until a change has to be reconciled, or false if a reconcile is due anyway.
func (d *debounce) next(now time.Time) (delay time.Duration, needed bool) {
	if d.due.After(now) {
		return 0, false
	}
	if d.due = d.due.Add(d.interval); d.due.Before(now) {
		d.due = now
	}
	return d.due.Sub(now), true
}
