// SPDX-License-Identifier: Apache-2.0

// Package unneeded deletes NodeClaims whose pods are gone before Karpenter has registered their node, or whose node is never
// initialized. Karpenter core removes initialized nodes only, so the machine would cost money until its registration deadline, and
// for good once it has registered.
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
// hasn't registered its node, or that is never initialized. The machine may have joined: Karpenter registers a node once its Machine has
// a provider ID.
const NotNeededReason = "NotNeeded"

const (
	// grace is the minimum age of a launched NodeClaim, and how long no pod may need it before the controller deletes
	// it: pods come and go during a Deployment's rollout.
	grace = 20 * time.Second
	// interval is between two checks while a NodeClaim is older than that. No event marks that the last pod that fits
	// it is gone.
	interval = 10 * time.Second
	// initialization is for how long a node may wait for its startup taints, devices and readiness before it counts as one that is never
	// initialized: as long as Karpenter core lets it take to register.
	initialization = 15 * time.Minute
)

// Needed returns the names of the NodeClaims that pods need.
type Needed func(ctx context.Context, nodeClaims []*karpv1.NodeClaim) (sets.Set[string], error)

// Config of the controller.
type Config struct {
	// Guest reads NodeClaims, NodePools and Nodes from the cache, and deletes NodeClaims.
	Guest  client.Client
	Needed Needed
	// Suspended reports whether nothing may act, because another process may hold the Lease.
	Suspended func() bool
	Recorder  events.Recorder
	Clock     clock.Clock
}

// candidate is a NodeClaim that may be given up.
type candidate struct {
	*karpv1.NodeClaim
	pool *pool
	// late is for how long its node has been expected to be initialized; 0 if it isn't registered.
	late time.Duration
}

// pool is a NodePool whose unneeded nodes may be removed.
type pool struct {
	*karpv1.NodePool
	nodes, leaving int
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

// Reconcile checks all NodeClaims that wait for their node, or for its initialization.
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
	nodeClaims := make([]*karpv1.NodeClaim, 0, len(waiting))
	for _, nodeClaim := range waiting {
		nodeClaims = append(nodeClaims, nodeClaim.NodeClaim)
	}
	needed, err := c.Needed(ctx, nodeClaims)
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
		if now.Sub(since) >= grace && c.allowed(nodeClaim) {
			errs = append(errs, c.giveUp(ctx, nodeClaim))
		}
	}
	return reconcile.Result{RequeueAfter: interval}, errors.Join(errs...)
}

// waiting returns the NodeClaims that launched at least grace ago and have no node yet, and those whose node should have been
// initialized, and when the next one gets that old.
func (c *Controller) waiting(ctx context.Context) (due []candidate, next time.Duration, err error) {
	nodeClaims := &karpv1.NodeClaimList{}
	if err := c.Guest.List(ctx, nodeClaims, client.UnsafeDisableDeepCopy); err != nil {
		return nil, 0, fmt.Errorf("listing NodeClaims: %w", err)
	}
	pools := map[string]*pool{}
	for i := range nodeClaims.Items {
		nodeClaim := &nodeClaims.Items[i]
		name := nodeClaim.Labels[karpv1.NodePoolLabelKey]
		if _, ok := pools[name]; !ok {
			if pools[name], err = c.disposable(ctx, name); err != nil {
				return nil, 0, err
			}
		}
		pool := pools[name]
		if pool == nil {
			continue
		}
		pool.nodes++
		if nodeClaim.DeletionTimestamp != nil {
			pool.leaving++
			continue
		}
		since, late, ok, err := c.since(ctx, nodeClaim, pool)
		if err != nil {
			return nil, 0, err
		}
		if !ok {
			continue
		}
		if remaining := since.Add(max(late, grace)).Sub(c.Clock.Now()); remaining > 0 {
			if next == 0 || remaining < next {
				next = remaining
			}
			continue
		}
		due = append(due, candidate{NodeClaim: nodeClaim, pool: pool, late: late})
	}
	return due, next, nil
}

// since returns since when a NodeClaim waits for its node or, with the time that this may take, for its initialization; false if it
// doesn't, or may not be disrupted.
func (c *Controller) since(ctx context.Context, nodeClaim *karpv1.NodeClaim, pool *pool,
) (since time.Time, late time.Duration, ok bool, err error) {
	conditions := nodeClaim.StatusConditions()
	launched, registered := conditions.Get(karpv1.ConditionTypeLaunched), conditions.Get(karpv1.ConditionTypeRegistered)
	switch {
	case !launched.IsTrue(), nodeClaim.Annotations[karpv1.DoNotDisruptAnnotationKey] == "true":
		return time.Time{}, 0, false, nil
	case !registered.IsTrue():
		return launched.LastTransitionTime.Time, 0, true, nil
	case conditions.Get(karpv1.ConditionTypeInitialized).IsTrue():
		return time.Time{}, 0, false, nil
	}
	node := &corev1.Node{}
	if err := c.Guest.Get(ctx, client.ObjectKey{Name: nodeClaim.Status.NodeName}, node); client.IgnoreNotFound(err) != nil {
		return time.Time{}, 0, false, fmt.Errorf("reading node %s: %w", nodeClaim.Status.NodeName, err)
	}
	late = max(initialization, *pool.Spec.Disruption.ConsolidateAfter.Duration)
	return registered.LastTransitionTime.Time, late, node.Annotations[karpv1.DoNotDisruptAnnotationKey] != "true", nil
}

// disposable returns a NodePool whose unneeded nodes may be removed, otherwise nil: it isn't static, its node class is of this
// provider, and consolidation isn't disabled.
func (c *Controller) disposable(ctx context.Context, name string) (*pool, error) {
	nodePool := &karpv1.NodePool{}
	switch err := c.Guest.Get(ctx, client.ObjectKey{Name: name}, nodePool); {
	case name == "" || apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // No such NodePool.
	case err != nil:
		return nil, fmt.Errorf("reading NodePool %s: %w", name, err)
	}
	ref := nodePool.Spec.Template.Spec.NodeClassRef
	if nodePool.Spec.Replicas != nil || nodePool.Spec.Disruption.ConsolidateAfter.Duration == nil ||
		ref == nil || ref.Group != v1alpha1.Group || ref.Kind != v1alpha1.Kind {
		return nil, nil //nolint:nilnil // Its nodes stay.
	}
	return &pool{NodePool: nodePool}, nil
}

// allowed reports whether a NodeClaim may go now. A node that has joined counts in the disruption budgets of its NodePool, as an
// empty one.
func (c *Controller) allowed(nodeClaim candidate) bool {
	if nodeClaim.late == 0 {
		return true
	}
	pool := nodeClaim.pool
	if pool.MustGetAllowedDisruptions(c.Clock, pool.nodes, karpv1.DisruptionReasonEmpty) <= pool.leaving {
		return false
	}
	pool.leaving++
	return true
}

// giveUp deletes the NodeClaim that was evaluated. If its node has joined or been initialized since, the resource version differs and
// the delete conflicts.
func (c *Controller) giveUp(ctx context.Context, nodeClaim candidate) error {
	err := c.Guest.Delete(ctx, nodeClaim.DeepCopy(), client.Preconditions{UID: &nodeClaim.UID, ResourceVersion: &nodeClaim.ResourceVersion})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("deleting NodeClaim %s: %w", nodeClaim.Name, err)
	}
	delete(c.unneeded, nodeClaim.UID)
	log.FromContext(ctx).Info("deleting a NodeClaim whose pods are gone before its node was registered and initialized", "NodeClaim",
		klog.KObj(nodeClaim))
	message := "No pod needs this NodeClaim, and Karpenter hasn't registered its node: deleting it"
	if nodeClaim.late > 0 {
		waits := "its conditions give no reason"
		if initialized := nodeClaim.StatusConditions().Get(karpv1.ConditionTypeInitialized); initialized != nil && initialized.Message != "" {
			waits = initialized.Message
		}
		message = fmt.Sprintf("No pod needs this NodeClaim, and its node hasn't been initialized within %s: %s; deleting it",
			nodeClaim.late, waits)
	}
	c.Recorder.Publish(events.Event{
		InvolvedObject: nodeClaim.NodeClaim,
		Type:           corev1.EventTypeNormal,
		Reason:         NotNeededReason,
		Message:        message,
		DedupeValues:   []string{string(nodeClaim.UID)},
	})
	return nil
}

// Register implements operatorpkg's controller.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	// All events are one request.
	requeue := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{{}} })
	return ctrl.NewControllerManagedBy(m).Named(c.Name()).Watches(&karpv1.NodeClaim{}, requeue).Complete(c)
}
