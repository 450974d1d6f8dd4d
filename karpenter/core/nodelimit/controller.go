// SPDX-License-Identifier: Apache-2.0

// Package nodelimit reports static NodePools whose limit of nodes keeps Karpenter from launching or replacing nodes.
//
// Upstream gap: core doesn't inform the user (docs/upstream/static-node-limit.md).
package nodelimit

import (
	"context"
	"fmt"
	"time"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/utils/resources"
)

// NodeLimitReachedReason is the reason of the event on a static NodePool whose spec.limits.nodes is too low. Raise it above
// spec.replicas, or remove it.
const NodeLimitReachedReason = "NodeLimitReached"

// requeueAfter is after how long an event is repeated while its cause lasts, because API servers forget events after an hour.
const requeueAfter = 50 * time.Minute

// Config of the controller.
type Config struct {
	// Guest reads NodePools and NodeClaims from the cache.
	Guest    client.Reader
	Recorder events.Recorder
	// TerminateFirst: Karpenter terminates a drifted node first where there is no room for its replacement.
	TerminateFirst bool
}

// Controller publishes an event on a static NodePool with fewer nodes allowed than replicas, or with drifted nodes and no room for
// a replacement, if Karpenter launches that first in any case: without the feature gate TerminateFirstDrift.
type Controller struct{ Config }

// New returns the controller.
func New(config Config) *Controller { return &Controller{config} }

// Name of the controller.
func (c *Controller) Name() string { return "nodepool.nodelimit" }

// Below returns spec.limits.nodes of a static NodePool if it leaves no room for a node beside spec.replicas.
func Below(nodePool *karpv1.NodePool) (limit int64, below bool) {
	quantity, ok := nodePool.Spec.Limits[resources.Node]
	if nodePool.Spec.Replicas == nil || !ok {
		return 0, false
	}
	return quantity.Value(), quantity.Value() <= *nodePool.Spec.Replicas
}

// NoReplacement returns why a drifted node of a static NodePool isn't replaced; empty if the NodePool's limit leaves room.
func NoReplacement(nodePool *karpv1.NodePool) string {
	limit, below := Below(nodePool)
	if !below {
		return ""
	}
	replicas := *nodePool.Spec.Replicas
	return fmt.Sprintf("Karpenter launches a replacement first, and spec.limits.nodes %d of NodePool %s leaves no room for one beside spec.replicas %d; set it to %d or more, or remove it",
		limit, nodePool.Name, replicas, replicas+1)
}

// Reconcile publishes the event of a NodePool.
func (c *Controller) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	nodePool := &karpv1.NodePool{}
	if err := c.Guest.Get(ctx, request.NamespacedName, nodePool); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	limit, below := Below(nodePool)
	if !below || nodePool.DeletionTimestamp != nil {
		return reconcile.Result{}, nil
	}
	replicas := *nodePool.Spec.Replicas
	nodeClaims := &karpv1.NodeClaimList{}
	if err := c.Guest.List(ctx, nodeClaims, client.MatchingLabels{karpv1.NodePoolLabelKey: nodePool.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("listing NodeClaims of NodePool %s: %w", nodePool.Name, err)
	}
	drifted := 0
	for i := range nodeClaims.Items {
		if !c.TerminateFirst && isDrifted(&nodeClaims.Items[i]) {
			drifted++
		}
	}
	message := ""
	switch {
	case drifted > 0:
		message = fmt.Sprintf("%s drifted and %s: %s", english.Plural(drifted, "node has", "nodes have"),
			english.PluralWord(drifted, "stays", "stay"), NoReplacement(nodePool))
	case limit < replicas:
		message = fmt.Sprintf("Karpenter launches %d of %d replicas: spec.limits.nodes allows no more; set it to %d or more, of which one is for replacements, or remove it",
			max(limit, 0), replicas, replicas+1)
	default:
		return reconcile.Result{}, nil
	}
	c.Recorder.Publish(events.Event{
		InvolvedObject: nodePool,
		Type:           corev1.EventTypeWarning,
		Reason:         NodeLimitReachedReason,
		Message:        message,
		DedupeValues:   []string{string(nodePool.UID), fmt.Sprint(limit, replicas, drifted > 0)},
		DedupeTimeout:  requeueAfter - time.Minute,
	})
	return reconcile.Result{RequeueAfter: requeueAfter}, nil
}

func isDrifted(nodeClaim *karpv1.NodeClaim) bool {
	if nodeClaim.DeletionTimestamp != nil {
		return false
	}
	for i := range nodeClaim.Status.Conditions {
		if condition := &nodeClaim.Status.Conditions[i]; condition.Type == karpv1.ConditionTypeDrifted {
			return condition.IsTrue()
		}
	}
	return false
}

// Register adds the controller to the guest's manager. Of NodeClaims it follows whether they have drifted.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	toNodePool := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, nodeClaim client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: nodeClaim.GetLabels()[karpv1.NodePoolLabelKey]}}}
	})
	drifts := predicate.Funcs{
		CreateFunc: func(e event.CreateEvent) bool { return isDrifted(e.Object.(*karpv1.NodeClaim)) },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return isDrifted(e.ObjectOld.(*karpv1.NodeClaim)) != isDrifted(e.ObjectNew.(*karpv1.NodeClaim))
		},
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
	return ctrl.NewControllerManagedBy(m).Named(c.Name()).
		For(&karpv1.NodePool{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&karpv1.NodeClaim{}, toNodePool, builder.WithPredicates(drifts)).
		Complete(c)
}
