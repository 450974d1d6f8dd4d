// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/autonode-io/autonode/karpenter/offering"
)

// Reasons of events on a NodeClaim that can't have its machine.
const (
	// InsufficientCapacityReason: the infrastructure has no such machine now; Karpenter takes the next cheapest offering.
	InsufficientCapacityReason = "InsufficientCapacity"
	// QuotaExceededReason: the account isn't allowed another such machine; raise the quota, or let Karpenter take another type.
	QuotaExceededReason = "QuotaExceeded"
)

// capacityWords are how infrastructure says that it has no such machine, and quotaWords that the account may not have one. A
// word is looked for in the reason, and as a whole word in the message. From the API references of AWS, Azure, Google Cloud,
// OpenStack, Oracle, vSphere, KubeVirt and Metal3.
var (
	capacityWords = []string{
		"InsufficientCapacity", "InsufficientInstanceCapacity", "InsufficientHostCapacity", "UnfulfillableCapacity", "ReservationCapacityExceeded",
		"SkuNotAvailable", "AllocationFailed", "ZonalAllocationFailed", "OverconstrainedAllocationRequest", "OverconstrainedZonalAllocationRequest",
		"ZONE_RESOURCE_POOL_EXHAUSTED", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "stockout",
		"No valid host was found", "Out of host capacity", "InsufficientResources", "insufficient resources", "NoCompatibleHost",
		"Insufficient cpu", "Insufficient memory", "No available host found",
	}
	quotaWords = []string{
		"QuotaExceeded", "QUOTA_EXCEEDED", "Quota exceeded", "LimitExceeded", "VcpuLimitExceeded", "InstanceLimitExceeded",
		"MaxSpotInstanceCountExceeded",
	}
)

// failure gives a NodeClaim up whose infrastructure can't be had, and keeps the offering from being chosen again for a while.
type failure struct{ Config }

func (f *failure) reconcile(ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine) (bool, error) {
	if m.Spec.ProviderID != "" {
		// It exists: what is said of it now isn't about getting it.
		return false, nil
	}
	condition := conditionOf(m, clusterv1.MachineInfrastructureReadyCondition)
	reason := lacking(condition)
	if reason == "" {
		return false, nil
	}
	key := offering.Key{
		InstanceType: m.Labels[corev1.LabelInstanceTypeStable],
		Zone:         m.Labels[corev1.LabelTopologyZone],
		CapacityType: m.Labels[karpv1.CapacityTypeLabelKey],
	}
	// Marked first: the pods must not be given the same offering again.
	until := f.Unavailable.Mark(key, condition.Reason)
	if err := f.giveUp(ctx, nodeClaim, "insufficient_capacity"); err != nil {
		return false, err
	}
	log.FromContext(ctx).Info("infrastructure has no such machine", "instanceType", key.InstanceType, "zone", key.Zone, "capacityType", key.CapacityType,
		"reason", condition.Reason, "message", condition.Message, "unavailable-until", until)
	f.Recorder.Publish(events.Event{
		InvolvedObject: nodeClaim,
		Type:           corev1.EventTypeWarning,
		Reason:         reason,
		Message: fmt.Sprintf("%s %s in zone %s can't be had: %s; not tried again before %s",
			key.CapacityType, key.InstanceType, key.Zone, detail(condition), until.UTC().Format(time.TimeOnly+" MST")),
		DedupeValues: []string{string(nodeClaim.UID)},
	})
	return true, nil
}

func detail(condition metav1.Condition) string {
	if condition.Message == "" {
		return condition.Reason
	}
	return condition.Reason + ": " + condition.Message
}

// lacking returns the reason for which a machine can't be had, or "" when the condition doesn't say so.
func lacking(condition metav1.Condition) string {
	if condition.Status != metav1.ConditionFalse {
		return ""
	}
	says := func(word string) bool {
		return strings.EqualFold(condition.Reason, word) || containsWord(condition.Message, word)
	}
	switch {
	case slices.ContainsFunc(quotaWords, says):
		return QuotaExceededReason
	case slices.ContainsFunc(capacityWords, says):
		return InsufficientCapacityReason
	}
	return ""
}

// containsWord finds a word or phrase that isn't part of a longer word, whatever its case.
func containsWord(text, word string) bool {
	text, word = strings.ToLower(text), strings.ToLower(word)
	for from := 0; ; {
		at := strings.Index(text[from:], word)
		if at < 0 {
			return false
		}
		start, end := from+at, from+at+len(word)
		if !endsInWord(text[:start]) && !startsWithWord(text[end:]) {
			return true
		}
		from = start + 1
	}
}

func inWord(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }

func endsInWord(text string) bool {
	runes := []rune(text)
	return len(runes) > 0 && inWord(runes[len(runes)-1])
}

func startsWithWord(text string) bool {
	for _, r := range text {
		return inWord(r)
	}
	return false
}
