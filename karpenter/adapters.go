// SPDX-License-Identifier: Apache-2.0

package karpenter

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/autonode-io/autonode/karpenter/cloudprovider"
	"github.com/autonode-io/autonode/karpenter/controllers/nodeclaim"
	"github.com/autonode-io/autonode/karpenter/controllers/unneeded"
	"github.com/autonode-io/autonode/karpenter/core/leadership"
)

// What one package needs of another one, in the form in which it needs that: neither imports the other.

// isReplacement reports whether Karpenter core launches a NodeClaim to replace nodes that run until then.
func isReplacement(queue *disruption.Queue, nodeClaim string) bool {
	return slices.ContainsFunc(queue.GetCommands(), func(command *disruption.Command) bool {
		return slices.ContainsFunc(command.Replacements, func(replacement *disruption.Replacement) bool { return replacement.Name == nodeClaim })
	})
}

// maxTold bounds the pods of a NodeClaim that get an event.
const maxTold = 10

// launchEvents repeats a failed launch on the pods that were planned on its NodeClaim: their owners may not read NodeClaims.
type launchEvents struct {
	events.Recorder
	guest   client.Client
	planned func(pod types.NamespacedName) string
	// fail counts a NodeClaim against an upgrade that proves itself, for one of upgradeFailures: a lack of capacity isn't the release's fault.
	fail func(ctx context.Context, nodeClaim *karpv1.NodeClaim, reason string)
	// note remembers why one of our controllers deletes a NodeClaim.
	note func(nodeClaim *karpv1.NodeClaim, reason, details string)
}

// endReasons are a NodeRecord's, by the events with which a NodeClaim is deleted that aren't LaunchFailures.
var endReasons = map[string]string{
	nodeclaim.InterruptedReason: "Interrupted", nodeclaim.InstanceTerminatedReason: "Interrupted", unneeded.NotNeededReason: "Empty",
	nodeclaim.MachineDeletedReason: "Deleted", nodeclaim.NodeDeletedReason: "Deleted", nodeclaim.MachineUnhealthyReason: "Unhealthy",
}

var upgradeFailures = sets.New(nodeclaim.LaunchTimeoutReason, nodeclaim.RegistrationTimeoutReason, nodeclaim.MachineFailedReason,
	nodeclaim.MisconfiguredReason, nodeclaim.MachineUnhealthyReason)

// Publish implements events.Recorder.
func (l launchEvents) Publish(published ...events.Event) {
	l.Recorder.Publish(published...)
	for _, event := range published {
		nodeClaim, ok := event.InvolvedObject.(*karpv1.NodeClaim)
		if ok && upgradeFailures.Has(event.Reason) {
			l.fail(context.Background(), nodeClaim, event.Reason)
		}
		if reason := endReasons[event.Reason]; ok && reason != "" {
			l.note(nodeClaim, reason, event.Message)
		}
		if !ok || !nodeclaim.LaunchFailures.Has(event.Reason) {
			continue
		}
		l.note(nodeClaim, "LaunchFailed", event.Message)
		pods := &corev1.PodList{} // there may be many that wait, and few that waited for this one
		_ = l.guest.List(context.Background(), pods, client.MatchingFields{"spec.nodeName": ""}, client.UnsafeDisableDeepCopy)
		waiting := slices.DeleteFunc(pods.Items,
			func(pod corev1.Pod) bool { return l.planned(client.ObjectKeyFromObject(&pod)) != nodeClaim.Name })
		for i := range waiting[:min(len(waiting), maxTold)] {
			pod := &waiting[i]
			l.Recorder.Publish(events.Event{
				InvolvedObject: pod, Type: event.Type, Reason: event.Reason, Message: "NodeClaim " + nodeClaim.Name + ": " + event.Message,
				DedupeValues: []string{string(pod.UID), event.Reason},
			})
		}
	}
}

// missing returns why a static NodePool can't get a node now.
func missing(provider *cloudprovider.CloudProvider, suspended func() bool) func(context.Context, *karpv1.NodePool) string {
	return func(ctx context.Context, nodePool *karpv1.NodePool) string {
		if suspended() {
			return leadership.ErrSuspended.Error()
		}
		return provider.Missing(ctx, nodePool)
	}
}
