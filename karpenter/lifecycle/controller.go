// SPDX-License-Identifier: Apache-2.0

// Package lifecycle tells a NodeClaim what becomes of its Machine: that it has a provider ID, that it can't be had, that
// somebody takes it away, that it is gone. Karpenter does the rest.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/metrics"
	"sigs.k8s.io/karpenter/pkg/operator/injection"
	nodeclaimutils "sigs.k8s.io/karpenter/pkg/utils/nodeclaim"

	"github.com/autonode-io/autonode/karpenter/machine"
	"github.com/autonode-io/autonode/karpenter/offering"
)

// concurrency is bounded by what the guest's API server bears; a reconcile mostly reads memory.
const concurrency = 100

// suspendedInterval is between two looks at whether the management cluster answers again. Only an outage makes anything look.
const suspendedInterval = 5 * time.Second

// Config of the controller.
type Config struct {
	// Guest reads NodeClaims from the cache and writes them.
	Guest client.Client
	// ManagementCache is watched for Machines.
	ManagementCache cache.Cache
	CloudProvider   karpcloudprovider.CloudProvider
	Machines        *machine.Provider
	Unavailable     *offering.Unavailable
	// Suspended tells that nothing may be decided, because the management cluster doesn't answer and its Machines may be others
	// than they seem.
	Suspended func() bool
	Recorder  events.Recorder
}

// Controller reconciles a NodeClaim with its Machine.
type Controller struct {
	Config
	departure departure
	steps     []step
}

// step looks at a NodeClaim that isn't being deleted and its Machine. It says whether it has dealt with the NodeClaim, so that
// later steps have nothing to do.
type step interface {
	reconcile(ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine) (done bool, err error)
}

// New returns the controller.
func New(config Config) *Controller {
	return &Controller{Config: config, departure: departure{config}, steps: []step{
		&removal{config},
		&failure{config},
		&identity{config},
	}}
}

// Name of the controller.
func (c *Controller) Name() string { return "machine.lifecycle" }

// Reconcile tells a NodeClaim what its Machine says.
func (c *Controller) Reconcile(ctx context.Context, nodeClaim *karpv1.NodeClaim) (reconcile.Result, error) {
	ctx = injection.WithControllerName(ctx, c.Name())
	if c.Suspended() {
		return reconcile.Result{RequeueAfter: suspendedInterval}, nil
	}
	if nodeClaim.DeletionTimestamp != nil {
		return reconcile.Result{}, c.departure.reconcile(ctx, nodeClaim)
	}
	if !nodeClaim.StatusConditions().Get(karpv1.ConditionTypeLaunched).IsTrue() {
		// Until Karpenter has taken over what Create returned, it isn't ready to be told more.
		return reconcile.Result{}, nil
	}
	m, err := c.Machines.ForNodeClaim(ctx, nodeClaim.UID)
	if errors.Is(err, machine.ErrNotFound) {
		// Either the cache lags, or the Machine is gone for good, which Karpenter's garbage collection finds.
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("reconciling NodeClaim %s: %w", nodeClaim.Name, err)
	}
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithValues("Machine", klog.KObj(m)))
	for _, s := range c.steps {
		if done, err := s.reconcile(ctx, nodeClaim, m); err != nil || done {
			return reconcile.Result{}, err
		}
	}
	return reconcile.Result{}, nil
}

// Register adds the controller to the guest's manager.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named(c.Name()).
		For(&karpv1.NodeClaim{}, builder.WithPredicates(nodeclaimutils.IsManagedPredicateFuncs(c.CloudProvider))).
		WatchesRawSource(source.Kind(c.ManagementCache, &clusterv1.Machine{},
			handler.TypedEnqueueRequestsFromMapFunc(c.nodeClaimOf), predicate.TypedFuncs[*clusterv1.Machine]{
				UpdateFunc:  func(e event.TypedUpdateEvent[*clusterv1.Machine]) bool { return matters(e.ObjectOld, e.ObjectNew) },
				GenericFunc: func(event.TypedGenericEvent[*clusterv1.Machine]) bool { return false },
			})).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrency}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// nodeClaimOf maps a Machine of ours to its NodeClaim: they have the same name.
func (c *Controller) nodeClaimOf(_ context.Context, m *clusterv1.Machine) []reconcile.Request {
	if !c.Machines.Owns(m) {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: m.Name}}}
}

// matters leaves out what no step looks at.
func matters(before, after *clusterv1.Machine) bool {
	return before.Spec.ProviderID != after.Spec.ProviderID ||
		(before.DeletionTimestamp == nil) != (after.DeletionTimestamp == nil) ||
		slices.ContainsFunc(watchedConditions, func(kind string) bool {
			b, a := conditionOf(before, kind), conditionOf(after, kind)
			return b.Status != a.Status || b.Reason != a.Reason || b.Message != a.Message
		})
}

var watchedConditions = []string{clusterv1.MachineInfrastructureReadyCondition}

// conditionOf returns a Machine's condition, zero when it has none of that type.
func conditionOf(m *clusterv1.Machine, kind string) metav1.Condition {
	for _, condition := range m.Status.Conditions {
		if condition.Type == kind {
			return condition
		}
	}
	return metav1.Condition{}
}

// giveUp deletes a NodeClaim, so that Karpenter provides for its pods anew.
func (c Config) giveUp(ctx context.Context, nodeClaim *karpv1.NodeClaim, reason string) error {
	uid := nodeClaim.UID
	if err := c.Guest.Delete(ctx, nodeClaim, client.Preconditions{UID: &uid}); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("deleting NodeClaim %s: %w", nodeClaim.Name, err))
	}
	metrics.NodeClaimsDisruptedTotal.Inc(map[string]string{
		metrics.ReasonLabel:       reason,
		metrics.NodePoolLabel:     nodeClaim.Labels[karpv1.NodePoolLabelKey],
		metrics.CapacityTypeLabel: nodeClaim.Labels[karpv1.CapacityTypeLabelKey],
	})
	return nil
}
