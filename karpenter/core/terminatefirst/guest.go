// SPDX-License-Identifier: Apache-2.0

package terminatefirst

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// Reason of the event on a NodeClaim, its Node and its NodePool, and of the NodePool's condition: a node is terminated before its replacement is
// launched. The message reports what is full. Raise that, and nodes are replaced first again.
const Reason = "TerminateFirst"

// Mark returns a func that runs before a NodeClaim is deleted: one that Karpenter core's disruption queue terminates first declares it before.
// Whoever deletes its machine, this process or a later one, holds what that leaves.
func Mark(queue func() *disruption.Queue, recorder events.Recorder) func(context.Context, client.Client, *karpv1.NodeClaim) error {
	return func(ctx context.Context, guest client.Client, nodeClaim *karpv1.NodeClaim) error {
		candidate, reason := candidateOf(queue(), nodeClaim)
		if reason == "" {
			return nil
		}
		why := message(nodeClaim, reason)
		marked := nodeClaim.DeepCopy()
		metav1.SetMetaDataAnnotation(&marked.ObjectMeta, v1alpha1.TerminateFirstAnnotation, string(reason)+": "+why)
		if err := guest.Patch(ctx, marked, client.MergeFrom(nodeClaim)); err != nil {
			return fmt.Errorf("marking NodeClaim %s: %w", nodeClaim.Name, err)
		}
		text := "Terminating before its replacement is launched: " + why
		involved := map[client.Object]string{nodeClaim: text}
		if candidate.Node != nil {
			involved[candidate.Node] = text
		}
		if candidate.NodePool != nil {
			involved[candidate.NodePool] = fmt.Sprintf("Terminating node %s before its replacement is launched: %s", candidate.Name(), why)
		}
		for object, text := range involved {
			recorder.Publish(events.Event{
				InvolvedObject: object, Type: corev1.EventTypeNormal, Reason: Reason, Message: text, DedupeValues: []string{string(object.GetUID()), string(nodeClaim.UID)},
			})
		}
		return nil
	}
}

// candidateOf returns the candidate for which the queue deletes a NodeClaim, and why it is terminated first; the queue has objects of its own.
func candidateOf(queue *disruption.Queue, nodeClaim *karpv1.NodeClaim) (*disruption.Candidate, disruption.TerminateFirstReason) {
	queue.RLock()
	defer queue.RUnlock()
	if command := queue.ProviderIDToCommand[nodeClaim.Status.ProviderID]; command != nil {
		for _, candidate := range command.Candidates {
			if candidate.NodeClaim == nodeClaim {
				return candidate, command.TerminateFirstReason
			}
		}
	}
	return nil, ""
}

// message returns what is full.
func message(nodeClaim *karpv1.NodeClaim, reason disruption.TerminateFirstReason) string {
	switch reason {
	case disruption.TerminateFirstNoReservedCapacity:
		return fmt.Sprintf("reservation %s is full", nodeClaim.Labels[v1alpha1.ReservationIDLabel])
	case disruption.TerminateFirstStaticAtLimit:
		return "spec.limits.nodes of the NodePool leaves no room for another node"
	case SourceFull:
		return "the template source of its machine has its maximum size"
	case LeaseFull:
		return "the hosted cluster's CapacityLease leaves no room for another machine"
	case NoSpareHost:
		return "the infrastructure has no spare host"
	}
	return string(reason)
}
