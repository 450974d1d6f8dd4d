// SPDX-License-Identifier: Apache-2.0

// Package unneeded deletes NodeClaims whose pods are gone before Karpenter has registered their node. Karpenter core removes empty
// nodes only, so the machine would cost money until its registration deadline.
package unneeded

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/injection"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// NotNeededReason is the reason of the event on a NodeClaim that the controller deletes: no pod needs it, and Karpenter
// hasn't registered its node. The machine may have joined: Karpenter registers a node once its Machine has a provider ID.
const NotNeededReason = "NotNeeded"

const (
	// grace is the minimum age of a launched NodeClaim, and how long no pod may need it before the controller deletes
	// it: pods come and go during a Deployment's rollout.
	grace = 20 * time.Second
	// interval is between two checks while a NodeClaim is older than that. No event marks that the last pod that fits
	// it is gone.
	interval = 10 * time.Second
)

// Needed returns the names of the NodeClaims that pods need.
type Needed func(ctx context.Context, nodeClaims []*karpv1.NodeClaim) (sets.Set[string], error)

// Config of the controller.
type Config struct {
	// Guest reads NodeClaims and NodePools from the cache, and deletes NodeClaims.
	Guest  client.Client
	Needed Needed
	// Suspended reports whether nothing may act, because another process may hold the Lease.
	Suspended func() bool
	Recorder  events.Recorder
	Clock     clock.PassiveClock
}

// Controller deletes unneeded NodeClaims. It handles one request at a time.
type Controller struct {
	Config
	// unneeded is since when each NodeClaim has been unneeded, by UID.
	unneeded map[types.UID]time.Time
}

// New returns the controller.
func New(config Config) *Controller {
	return &Controller{Config: config, unneeded: map[types.UID]time.Time{}}
}

// Name of the controller.
func (c *Controller) Name() string { return "nodeclaim.unneeded" }

// Reconcile checks all NodeClaims that wait for their node.
func (c *Controller) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	ctx = injection.WithControllerName(ctx, c.Name())
	waiting, next, err := c.waiting(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	known := sets.New[types.UID]()
	for _, nodeClaim := range waiting {
		known.Insert(nodeClaim.UID)
	}
	for uid := range c.unneeded {
		if !known.Has(uid) {
			delete(c.unneeded, uid)
		}
	}
	if len(waiting) == 0 || c.Suspended() {
		return reconcile.Result{RequeueAfter: next}, nil
	}
	needed, err := c.Needed(ctx, waiting)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("finding NodeClaims that pods wait for: %w", err)
	}
	now, errs := c.Clock.Now(), []error(nil)
	for _, nodeClaim := range waiting {
		if needed.Has(nodeClaim.Name) {
			delete(c.unneeded, nodeClaim.UID)
			continue
		}
		since, ok := c.unneeded[nodeClaim.UID]
		if !ok {
			since = now
			c.unneeded[nodeClaim.UID] = now
		}
		if now.Sub(since) >= grace {
			errs = append(errs, c.giveUp(ctx, nodeClaim))
		}
	}
	return reconcile.Result{RequeueAfter: interval}, errors.Join(errs...)
}

// waiting returns the NodeClaims that launched at least grace ago and have no node yet, and when the next one gets
// that old.
func (c *Controller) waiting(ctx context.Context) (due []*karpv1.NodeClaim, next time.Duration, err error) {
	nodeClaims := &karpv1.NodeClaimList{}
	if err := c.Guest.List(ctx, nodeClaims, client.UnsafeDisableDeepCopy); err != nil {
		return nil, 0, fmt.Errorf("listing NodeClaims: %w", err)
	}
	disposable := map[string]bool{}
	for i := range nodeClaims.Items {
		nodeClaim := &nodeClaims.Items[i]
		launched := nodeClaim.StatusConditions().Get(karpv1.ConditionTypeLaunched)
		if nodeClaim.DeletionTimestamp != nil || !launched.IsTrue() || nodeClaim.StatusConditions().Get(karpv1.ConditionTypeRegistered).IsTrue() {
			continue
		}
		name := nodeClaim.Labels[karpv1.NodePoolLabelKey]
		if _, ok := disposable[name]; !ok {
			if disposable[name], err = c.disposable(ctx, name); err != nil {
				return nil, 0, err
			}
		}
		if !disposable[name] || nodeClaim.Annotations[karpv1.DoNotDisruptAnnotationKey] == "true" {
			continue
		}
		if left := launched.LastTransitionTime.Add(grace).Sub(c.Clock.Now()); left > 0 {
			if next == 0 || left < next {
				next = left
			}
			continue
		}
		due = append(due, nodeClaim)
	}
	return due, next, nil
}

// disposable reports whether unneeded nodes of a NodePool may be removed: it isn't static, its node class is of this
// provider, and consolidation isn't disabled.
func (c *Controller) disposable(ctx context.Context, name string) (bool, error) {
	nodePool := &karpv1.NodePool{}
	switch err := c.Guest.Get(ctx, client.ObjectKey{Name: name}, nodePool); {
	case name == "" || apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("reading NodePool %s: %w", name, err)
	}
	ref := nodePool.Spec.Template.Spec.NodeClassRef
	return nodePool.Spec.Replicas == nil && nodePool.Spec.Disruption.ConsolidateAfter.Duration != nil &&
		ref != nil && ref.Group == v1alpha1.Group && ref.Kind == v1alpha1.Kind, nil
}

// giveUp deletes the NodeClaim that was evaluated. If its node has joined since, the resource version differs and the
// delete conflicts.
func (c *Controller) giveUp(ctx context.Context, nodeClaim *karpv1.NodeClaim) error {
	err := c.Guest.Delete(ctx, nodeClaim.DeepCopy(), client.Preconditions{UID: &nodeClaim.UID, ResourceVersion: &nodeClaim.ResourceVersion})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("deleting NodeClaim %s: %w", nodeClaim.Name, err)
	}
	delete(c.unneeded, nodeClaim.UID)
	log.FromContext(ctx).Info("deleting a NodeClaim whose pods are gone before its node registered", "NodeClaim", klog.KObj(nodeClaim))
	c.Recorder.Publish(events.Event{
		InvolvedObject: nodeClaim,
		Type:           corev1.EventTypeNormal,
		Reason:         NotNeededReason,
		Message:        "No pod needs this NodeClaim, and Karpenter hasn't registered its node: deleting it",
		DedupeValues:   []string{string(nodeClaim.UID)},
	})
	return nil
}

// Register implements operatorpkg's controller.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	// All events are one request.
	look := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{{}} })
	return ctrl.NewControllerManagedBy(m).Named(c.Name()).Watches(&karpv1.NodeClaim{}, look).Complete(c)
}
