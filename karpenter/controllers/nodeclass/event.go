// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"fmt"
	"slices"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// changes returns the events for the difference between two states of a node class: one for each changed condition,
// and one for a changed version. A node class that is ready from the start gets no event.
func changes(before, after *v1alpha1.ClusterAPINodeClass) []events.Event {
	var result []events.Event
	was := map[string]status.Condition{}
	for _, condition := range before.Status.Conditions {
		was[condition.Type] = condition
	}
	for _, condition := range after.Status.Conditions {
		old := was[condition.Type]
		fine := condition.IsTrue() && condition.Reason == condition.Type
		switch {
		case slices.Contains([]string{status.ConditionReady, v1alpha1.ConditionSourcesFound, v1alpha1.ConditionReferencesResolved},
			condition.Type):
			// Ready and TemplatesReady repeat other conditions.
		case condition.IsUnknown(), condition.Status == old.Status && condition.Reason == old.Reason:
		case fine && (old.IsUnknown() || old.Status == ""):
		default:
			result = append(result, conditionChanged(after, condition, fine))
		}
	}
	if before.Status.Version != "" && before.Status.Version != after.Status.Version {
		result = append(result, versionChanged(after, before.Status.Version))
	}
	return result
}

func conditionChanged(nodeClass *v1alpha1.ClusterAPINodeClass, condition status.Condition, fine bool) events.Event {
	eventType := corev1.EventTypeWarning
	if fine || condition.Reason == v1alpha1.AsleepReason {
		eventType = corev1.EventTypeNormal
	}
	return events.Event{InvolvedObject: nodeClass, Type: eventType, Reason: condition.Reason, Message: condition.Message}
}

func versionChanged(nodeClass *v1alpha1.ClusterAPINodeClass, before string) events.Event {
	return events.Event{
		InvolvedObject: nodeClass, Type: corev1.EventTypeNormal, Reason: "VersionChanged",
		Message: fmt.Sprintf("new nodes run %s; before: %s", nodeClass.Status.Version, before),
	}
}

// inUse names a few of the users. It is published again only when their number changes.
func inUse(nodeClass *v1alpha1.ClusterAPINodeClass, users []string) events.Event {
	named := users[:min(len(users), 3)]
	return events.Event{
		InvolvedObject: nodeClass, Type: corev1.EventTypeNormal, Reason: "WaitingForNodeClaims",
		Message: fmt.Sprintf("%d NodeClaims still use this node class, such as %s; it is removed when they are gone", len(users),
			strings.Join(named, ", ")),
		DedupeValues: []string{string(nodeClass.UID), fmt.Sprint(len(users))},
	}
}
