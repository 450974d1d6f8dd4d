// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/utils/resources"
)

// NodeLimitReachedReason is the reason of the event on a static NodePool whose spec.limits.nodes is too low. Raise it above
// spec.replicas, or remove it.
const NodeLimitReachedReason = "NodeLimitReached"

// NoReplacement returns why a drifted node of a static NodePool isn't replaced; empty if the NodePool's limit leaves room.
func NoReplacement(nodePool *karpv1.NodePool) string {
	limit, ok := nodePool.Spec.Limits[resources.Node]
	if nodePool.Spec.Replicas == nil || !ok || limit.Value() > *nodePool.Spec.Replicas {
		return ""
	}
	replicas := *nodePool.Spec.Replicas
	return fmt.Sprintf("Karpenter launches a replacement first, and spec.limits.nodes %d of NodePool %s leaves no room for one beside "+
		"spec.replicas %d; set it to %d or more, or remove it", limit.Value(), nodePool.Name, replicas, replicas+1)
}

// NodeLimit publishes an event on a static NodePool with fewer nodes allowed than replicas, or with drifted nodes and no room for a
// replacement, around the passes of Karpenter core's static provisioning, which come at least once a minute. replacesFirst: Karpenter
// launches a replacement before it terminates a node, in any case.
//
// Upstream gap: core doesn't inform the user (docs/internals/upstream/static-node-limit.md).
func NodeLimit(guest client.Reader, recorder events.Recorder, replacesFirst bool) Middleware {
	return Around(func(ctx context.Context, request reconcile.Request, next reconcile.Reconciler) (reconcile.Result, error) {
		nodePool, nodeClaims := &karpv1.NodePool{}, &karpv1.NodeClaimList{}
		if err := guest.Get(ctx, request.NamespacedName, nodePool); client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, fmt.Errorf("reading NodePool %s: %w", request.Name, err)
		}
		reason, message := NoReplacement(nodePool), ""
		if reason != "" && replacesFirst {
			if err := guest.List(ctx, nodeClaims, client.MatchingLabels{karpv1.NodePoolLabelKey: nodePool.Name},
				client.UnsafeDisableDeepCopy); err != nil {
				return reconcile.Result{}, fmt.Errorf("listing NodeClaims of NodePool %s: %w", nodePool.Name, err)
			}
		}
		limit := nodePool.Spec.Limits[resources.Node]
		switch {
		case slices.ContainsFunc(nodeClaims.Items, func(nodeClaim karpv1.NodeClaim) bool {
			return nodeClaim.DeletionTimestamp == nil && nodeClaim.StatusConditions(status.WithObservedOnly()).IsTrue(karpv1.ConditionTypeDrifted)
		}):
			message = "Drifted nodes stay: " + reason
		case reason != "" && limit.Value() < *nodePool.Spec.Replicas:
			message = fmt.Sprintf("Karpenter launches %d of %d replicas: spec.limits.nodes allows no more; set it to %d or more, of which one is "+
				"for replacements, or remove it", max(limit.Value(), 0), *nodePool.Spec.Replicas, *nodePool.Spec.Replicas+1)
		}
		if message != "" {
			recorder.Publish(events.Event{
				InvolvedObject: nodePool, Type: corev1.EventTypeWarning, Reason: NodeLimitReachedReason, Message: message,
				DedupeValues: []string{string(nodePool.UID), message}, DedupeTimeout: 50 * time.Minute, // API servers forget events after an hour
			})
		}
		return next.Reconcile(ctx, request)
	})
}
