// SPDX-License-Identifier: Apache-2.0

package terminatefirst

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

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

// Follower tracks which NodeClaims Karpenter core's disruption queue terminates first.
type Follower struct {
	queue    atomic.Pointer[disruption.Queue]
	recorder events.Recorder
}

// NewFollower returns one that has none before Follow.
func NewFollower(recorder events.Recorder) *Follower { return &Follower{recorder: recorder} }

// Follow begins to follow a queue.
func (f *Follower) Follow(queue *disruption.Queue) { f.queue.Store(queue) }

// Guest wraps Karpenter core's guest client, with which the methods simulate. Before the disruption queue deletes a NodeClaim with it that
// is to be terminated first, the NodeClaim declares it. Whoever deletes its machine, this process or a later one, holds what that leaves.
func Guest(guest client.Client, follower *Follower) client.Client {
	return marking{Client: guest, follower: follower}
}

type marking struct {
	client.Client
	follower *Follower
}

// pendingKey is the key of a context in which no pod is pending.
type pendingKey struct{}

func withoutPending(ctx context.Context) context.Context {
	return context.WithValue(ctx, pendingKey{}, true)
}

// List implements client.Client.
func (c marking) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if pods, ok := list.(*corev1.PodList); ok && ctx.Value(pendingKey{}) != nil && listsPending(opts) {
		pods.Items = nil
		return nil
	}
	return c.Client.List(ctx, list, opts...)
}

// listsPending reports whether pods without a node are listed, as the provisioner does.
func listsPending(opts []client.ListOption) bool {
	options := (&client.ListOptions{}).ApplyOptions(opts)
	if options.FieldSelector == nil {
		return false
	}
	node, exact := options.FieldSelector.RequiresExactMatch("spec.nodeName")
	return exact && node == ""
}

// Delete implements client.Client.
func (c marking) Delete(ctx context.Context, object client.Object, opts ...client.DeleteOption) error {
	if nodeClaim, ok := object.(*karpv1.NodeClaim); ok {
		if command, candidate := c.follower.commandOf(nodeClaim); command != nil && command.TerminateFirstReason != "" {
			if err := c.mark(ctx, nodeClaim, candidate, command.TerminateFirstReason); err != nil {
				return err
			}
		}
	}
	return c.Client.Delete(ctx, object, opts...)
}

func (c marking) mark(ctx context.Context, nodeClaim *karpv1.NodeClaim, candidate *disruption.Candidate, reason disruption.TerminateFirstReason) error {
	why := message(nodeClaim, reason)
	marked := nodeClaim.DeepCopy()
	metav1.SetMetaDataAnnotation(&marked.ObjectMeta, v1alpha1.TerminateFirstAnnotation, string(reason)+": "+why)
	if err := c.Patch(ctx, marked, client.MergeFrom(nodeClaim)); err != nil {
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
		c.follower.recorder.Publish(events.Event{
			InvolvedObject: object, Type: corev1.EventTypeNormal, Reason: Reason, Message: text, DedupeValues: []string{string(object.GetUID()), string(nodeClaim.UID)},
		})
	}
	return nil
}

// commandOf returns the command for which the queue deletes a NodeClaim; the queue has objects of its own.
func (f *Follower) commandOf(nodeClaim *karpv1.NodeClaim) (*disruption.Command, *disruption.Candidate) {
	queue := f.queue.Load()
	if queue == nil {
		return nil, nil
	}
	queue.RLock()
	defer queue.RUnlock()
	command := queue.ProviderIDToCommand[nodeClaim.Status.ProviderID]
	if command == nil {
		return nil, nil
	}
	i := slices.IndexFunc(command.Candidates, func(c *disruption.Candidate) bool { return c.NodeClaim == nodeClaim })
	if i < 0 {
		return nil, nil
	}
	return command, command.Candidates[i]
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
