// SPDX-License-Identifier: Apache-2.0

// Package capacitybuffer corrects Karpenter's count of capacity buffers on each node, so that Karpenter doesn't treat
// the nodes that hold them as empty.
//
// Upstream gap: core counts buffers by provider ID, and only in a scheduling pass
// (docs/upstream/capacity-buffer-count.md).
package capacitybuffer

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	nodeclaimutils "sigs.k8s.io/karpenter/pkg/utils/nodeclaim"
)

// settle is the requeue interval while Karpenter's cluster state lags behind the NodeClaims. Both are fed by the same
// watch, so the lag is milliseconds, but no event marks its end.
const settle = time.Second

// Provisioner runs scheduling passes, like Karpenter's.
type Provisioner interface {
	// Trigger requests a pass.
	Trigger(uid types.UID)
}

// Config of the controller.
type Config struct {
	// Guest reads NodeClaims and CapacityBuffers from the cache.
	Guest         client.Client
	CloudProvider karpcloudprovider.CloudProvider
	Cluster       *state.Cluster
	Provisioner   Provisioner
}

// Controller makes Karpenter recount capacity buffers when the count may be stale.
//
// Karpenter counts buffers in a scheduling pass, by provider ID, and only on nodes that have one. A node launched for
// a buffer counts as empty until the next pass, and again when its Machine's provider ID replaces the synthetic one.
// The pass that Karpenter triggers after a launch is lost if it runs before all NodeClaims have a provider ID. The
// next pass runs half a minute later; by then Karpenter may have consolidated the node.
type Controller struct{ Config }

// New returns the controller.
func New(config Config) *Controller { return &Controller{config} }

// Name of the controller.
func (c *Controller) Name() string { return "capacitybuffer.count" }

// Reconcile triggers a scheduling pass once Karpenter's cluster state has every NodeClaim's provider ID. When the
// last buffer is deleted, no pass runs, so Reconcile clears the counts itself.
func (c *Controller) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	buffers := &autoscalingv1beta1.CapacityBufferList{}
	if err := c.Guest.List(ctx, buffers); err != nil {
		return reconcile.Result{}, fmt.Errorf("listing capacity buffers: %w", err)
	}
	if len(buffers.Items) == 0 {
		c.Cluster.UpdateBufferPodCounts(map[string]int{})
		return reconcile.Result{}, nil
	}
	nodeClaims, err := nodeclaimutils.ListManaged(ctx, c.Guest, c.CloudProvider, client.UnsafeDisableDeepCopy)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("listing NodeClaims: %w", err)
	}
	known := sets.New[string]()
	for node := range c.Cluster.Nodes() {
		known.Insert(node.ProviderID())
	}
	for _, nodeClaim := range nodeClaims {
		if !known.Has(nodeClaim.Status.ProviderID) {
			return reconcile.Result{RequeueAfter: settle}, nil
		}
	}
	c.Provisioner.Trigger(buffers.Items[0].UID)
	return reconcile.Result{}, nil
}

// Register implements operatorpkg's controller. It does nothing if the CapacityBuffer feature gate is off: the CRD
// may be missing, and Karpenter has no permission to watch it.
func (c *Controller) Register(ctx context.Context, m manager.Manager) error {
	if !options.FromContext(ctx).FeatureGates.CapacityBuffer {
		return nil
	}
	// All events are one request: a pass counts everything.
	recount := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{}}
	})
	return ctrl.NewControllerManagedBy(m).
		Named(c.Name()).
		Watches(&autoscalingv1beta1.CapacityBuffer{}, recount, builder.WithPredicates(deleted())).
		Watches(&karpv1.NodeClaim{}, recount, builder.WithPredicates(identified())).
		Complete(c)
}

// deleted passes deletions only. Karpenter watches all other changes itself.
func deleted() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// identified passes a NodeClaim whose provider ID was set or has changed.
func identified() predicate.Predicate {
	id := func(o client.Object) string {
		if nodeClaim, ok := o.(*karpv1.NodeClaim); ok {
			return nodeClaim.Status.ProviderID
		}
		return ""
	}
	return predicate.Funcs{
		CreateFunc:  func(e event.CreateEvent) bool { return id(e.Object) != "" },
		UpdateFunc:  func(e event.UpdateEvent) bool { return id(e.ObjectNew) != "" && id(e.ObjectNew) != id(e.ObjectOld) },
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}
