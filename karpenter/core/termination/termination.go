// SPDX-License-Identifier: Apache-2.0

// Package termination lets Karpenter core finish the termination of a node as soon as its Machine is gone.
//
// Upstream gap: core asks the cloud provider every five seconds whether a node's instance is gone. A provider that
// watches its instances can't report that one is (docs/upstream/termination-poll.md).
package termination

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// concurrency of reconciles: Machines of a fleet that scales down go in bursts.
const concurrency = 10

// Config of the controller.
type Config struct {
	// Guest reads Nodes from the cache.
	Guest client.Client
	// Core is Karpenter's controller of a node's termination.
	Core reconcile.ObjectReconciler[*corev1.Node]
	// ManagementCache is watched for Machines.
	ManagementCache cache.Cache
	// Owns reports whether the provider made a Machine.
	Owns func(object client.Object) bool
}

// Controller runs a pass of Karpenter's controller for the node of each deleted Machine. That pass does what the next
// one would do up to five seconds later: Karpenter's controller ignores a node that isn't being deleted, and both
// write with optimistic locks.
type Controller struct{ Config }

// New returns the controller.
func New(config Config) *Controller { return &Controller{config} }

// Name of the controller.
func (c *Controller) Name() string { return "node.termination.machine" }

// Reconcile runs a pass of Karpenter's controller.
func (c *Controller) Reconcile(ctx context.Context, node *corev1.Node) (reconcile.Result, error) {
	return c.Core.Reconcile(ctx, node)
}

// Register adds the controller to the guest's manager.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named(c.Name()).
		WatchesRawSource(source.Kind(c.ManagementCache, &clusterv1.Machine{}, handler.TypedFuncs[*clusterv1.Machine, reconcile.Request]{
			DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*clusterv1.Machine], queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				if node := e.Object.Status.NodeRef.Name; node != "" && c.Owns(e.Object) {
					queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: node}})
				}
			},
		})).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrency}).
		Complete(reconcile.AsReconciler(c.Guest, c))
}
