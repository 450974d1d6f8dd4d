// SPDX-License-Identifier: Apache-2.0

package why

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/autonode-io/autonode/cli/explain"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// failuresOf reads which offerings are in back-off in the events of NodeClaims, the newest first.
func failuresOf(events []corev1.Event) []explain.Failure {
	events = slices.Clone(events)
	slices.SortStableFunc(events, func(a, b corev1.Event) int { return lastSeen(&b).Compare(lastSeen(&a)) })
	var failures []explain.Failure
	for i := range events {
		notice, ok := offering.ReadNotice(events[i].Message, lastSeen(&events[i]))
		if !ok {
			continue
		}
		failures = append(failures, explain.Failure{
			InstanceType: notice.Key.InstanceType, CapacityType: notice.Key.CapacityType, Zone: notice.Key.Zone, NodePool: notice.NodePool,
			Message: strings.Join(strings.Fields(events[i].Reason+": "+events[i].Message), " "), Until: notice.Until,
		})
	}
	return failures
}

// lastSeen is when an event happened last. Which field has that depends on the API that it was written by.
func lastSeen(event *corev1.Event) time.Time {
	if event.Series != nil && !event.Series.LastObservedTime.IsZero() {
		return event.Series.LastObservedTime.Time
	}
	for _, at := range []time.Time{event.LastTimestamp.Time, event.EventTime.Time} {
		if !at.IsZero() {
			return at
		}
	}
	return event.CreationTimestamp.Time
}
