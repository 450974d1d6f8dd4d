// SPDX-License-Identifier: Apache-2.0

// Package nodecount corrects Karpenter's count of a static NodePool's nodes that are being deleted.
//
// Upstream gap: core may count a NodeClaim as being deleted after it has forgotten it, and then counts it until it restarts
// (docs/upstream/static-node-count.md).
package nodecount

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
)

// settle is after how long a NodeClaim that is gone isn't counted any more, whatever core's controllers had in hand when it went. They
// need milliseconds.
const settle = 10 * time.Second

// Gone is a NodeClaim that was deleted, with its NodePool.
type Gone struct{ NodePool, NodeClaim string }

// Config of the controller.
type Config struct {
	// Guest reads NodeClaims from the cache.
	Guest client.Client
	Nodes *state.NodePoolState
}

// Controller makes Karpenter forget a NodeClaim a second time, some seconds after it was deleted.
//
// Karpenter's deprovisioning of static NodePools deletes a NodeClaim and then counts it as being deleted. A NodeClaim without a finalizer is
// gone at once, and so may be forgotten before it is counted. It then takes a place of the NodePool's limit: with none left, drifted
// nodes aren't replaced.
type Controller struct{ Config }

// New returns the controller.
func New(config Config) *Controller { return &Controller{config} }

// Name of the controller.
func (c *Controller) Name() string { return "nodepool.nodecount" }

// Reconcile removes a NodeClaim from the counts if it is gone and its NodePool counts nodes that are being deleted.
func (c *Controller) Reconcile(ctx context.Context, gone Gone) (reconcile.Result, error) {
	if _, deleting, _ := c.Nodes.GetNodeCount(gone.NodePool); deleting == 0 {
		return reconcile.Result{}, nil
	}
	err := c.Guest.Get(ctx, client.ObjectKey{Name: gone.NodeClaim}, &karpv1.NodeClaim{})
	if err == nil {
		return reconcile.Result{}, nil // another one of the same name
	}
	if !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("reading NodeClaim %s: %w", gone.NodeClaim, err)
	}
	// Cleanup finds the NodePool by the NodeClaim, which it has forgotten.
	c.Nodes.SetNodeClaimMapping(gone.NodePool, gone.NodeClaim)
	c.Nodes.Cleanup(gone.NodeClaim)
	return reconcile.Result{}, nil
}

// Register adds the controller to the guest's manager.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	deleted := handler.TypedFuncs[*karpv1.NodeClaim, Gone]{
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*karpv1.NodeClaim], queue workqueue.TypedRateLimitingInterface[Gone]) {
			if nodePool := e.Object.Labels[karpv1.NodePoolLabelKey]; nodePool != "" {
				queue.AddAfter(Gone{NodePool: nodePool, NodeClaim: e.Object.Name}, settle)
			}
		},
	}
	return builder.TypedControllerManagedBy[Gone](m).Named(c.Name()).
		WatchesRawSource(source.TypedKind(m.GetCache(), &karpv1.NodeClaim{}, deleted)).
		Complete(c)
}
