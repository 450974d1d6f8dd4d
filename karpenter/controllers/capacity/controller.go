// SPDX-License-Identifier: Apache-2.0

// Package capacity observes how much memory the registered nodes of the guest have.
package capacity

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/observedcapacity"
)

// Config of the controller.
type Config struct {
	// Guest reads Nodes from the cache.
	Guest client.Client
	// Machines tell what a node was made from.
	Machines *machine.Provider
	Memory   *observedcapacity.Memory
}

// Controller tells Memory what the nodes in the guest have. It runs on replicas that don't lead too, so that one that takes over
// knows at once, and it learns again from the nodes there are when it starts.
type Controller struct{ Config }

// New returns the controller.
func New(config Config) *Controller { return &Controller{Config: config} }

// Name of the controller.
func (c *Controller) Name() string { return "node.capacity" }

// Reconcile learns from one node.
func (c *Controller) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	node := &corev1.Node{}
	if err := c.Guest.Get(ctx, request.NamespacedName, node); err != nil {
		if apierrors.IsNotFound(err) {
			c.Memory.Forget(request.Name)
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, fmt.Errorf("reading Node %s: %w", request.Name, err)
	}
	// Karpenter registers a node by the provider ID that its Machine has by then.
	if node.Labels[karpv1.NodeRegisteredLabelKey] != "true" {
		return reconcile.Result{}, nil
	}
	m, err := c.Machines.ForProviderID(ctx, node.Spec.ProviderID)
	if errors.Is(err, machine.ErrNotFound) {
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("learning from Node %s: %w", node.Name, err)
	}
	form := observedcapacity.Form{Source: m.Annotations[v1alpha1.ShapeSourceAnnotation], ContentHash: m.Annotations[v1alpha1.ShapeHashAnnotation]}
	if form.Source != "" && form.ContentHash != "" {
		c.Memory.Observe(node.Name, form, node.Status.Capacity.Memory().Value())
	}
	return reconcile.Result{}, nil
}

// Register adds the controller to the guest's manager.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named(c.Name()).
		For(&corev1.Node{}, builder.WithPredicates(predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
			before, okBefore := e.ObjectOld.(*corev1.Node)
			after, okAfter := e.ObjectNew.(*corev1.Node)
			return okBefore && okAfter && (before.Status.Capacity.Memory().Cmp(*after.Status.Capacity.Memory()) != 0 ||
				before.Spec.ProviderID != after.Spec.ProviderID ||
				before.Labels[karpv1.NodeRegisteredLabelKey] != after.Labels[karpv1.NodeRegisteredLabelKey])
		}})).
		WithOptions(controller.Options{NeedLeaderElection: ptr.To(false)}).
		Complete(c)
}
