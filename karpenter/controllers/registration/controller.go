// SPDX-License-Identifier: Apache-2.0

// Package registration taints a node that joined without the unregistered taint, because its bootstrap data can't set
// it, and with the NodePool's taints and startup taints. Karpenter registers such a node too, and adds those taints then.
// It can't until the NodeClaim has the node's provider ID, and until then the scheduler may bind pods that don't tolerate
// them. Karpenter core may also add them more than once, and so bring back a startup taint that its agent has removed.
package registration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/operator/injection"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

// afterConflict is the requeue interval after a conflict, so that the cache can catch up. Not every change of a Node
// triggers a reconcile here.
const afterConflict = 100 * time.Millisecond

// concurrency is small: a reconcile that writes is rare, and all others read memory.
const concurrency = 10

// nodeProviderIDIndex is Karpenter core's index of Nodes.
const nodeProviderIDIndex = "spec.providerID"

// Config of the controller.
type Config struct {
	// Guest reads Nodes and NodeClaims from a cache with Karpenter core's indexes, and writes Nodes.
	Guest client.Client
	// ManagementCache is watched for Machines.
	ManagementCache cache.Cache
	Machines        *machine.Provider
}

// Controller taints nodes.
type Controller struct{ Config }

// New returns the controller.
func New(config Config) *Controller { return &Controller{Config: config} }

// Name of the controller.
func (c *Controller) Name() string { return "node.registration" }

// Reconcile taints a Node of this cluster's Machines that lacks the unregistered taint and that Karpenter hasn't
// registered. Karpenter removes the unregistered taint when it registers the node.
func (c *Controller) Reconcile(ctx context.Context, node *corev1.Node) (reconcile.Result, error) {
	ctx = injection.WithControllerName(ctx, c.Name())
	if !lacking(node) {
		return reconcile.Result{}, nil
	}
	m, err := c.Machines.ForProviderID(ctx, node.Spec.ProviderID)
	if errors.Is(err, machine.ErrNotFound) {
		// Not one of our Machines, or its Machine has no provider ID yet.
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("finding the Machine of Node %s: %w", node.Name, err)
	}
	nodeClaim, name := &karpv1.NodeClaim{}, v1alpha1.NodeClaimOf(m)
	if err := c.Guest.Get(ctx, types.NamespacedName{Name: name}, nodeClaim); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(fmt.Errorf("reading NodeClaim %s: %w", name, err))
	}
	switch {
	case string(nodeClaim.UID) != m.Labels[v1alpha1.NodeClaimUIDLabel], nodeClaim.DeletionTimestamp != nil, m.DeletionTimestamp != nil:
		return reconcile.Result{}, nil
	case nodeClaim.StatusConditions().Get(karpv1.ConditionTypeRegistered).IsTrue():
		// Karpenter wouldn't remove the taint again.
		return reconcile.Result{}, nil
	}
	stored := node.DeepCopy()
	taint(node, nodeClaim)
	// The optimistic lock keeps this from undoing a concurrent registration, and from dropping another controller's
	// taint.
	err = c.Guest.Patch(ctx, node, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
	switch {
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: afterConflict}, nil
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("tainting Node %s: %w", node.Name, err)
	}
	log.FromContext(ctx).Info("tainted a node that joined without the unregistered taint", "NodeClaim", klog.KObj(nodeClaim),
		"Machine", klog.KObj(m))
	return reconcile.Result{}, nil
}

// taint adds the unregistered taint, and unless the node's label declares that it has them, the NodeClaim's. One patch adds them
// with the label, so that Karpenter core doesn't add them again: the startup taints' agents may remove them from then on.
func taint(node *corev1.Node, nodeClaim *karpv1.NodeClaim) {
	node.Spec.Taints = append(node.Spec.Taints, karpv1.UnregisteredNoExecuteTaint)
	if node.Labels[karpv1.NodeDoNotSyncTaintsLabelKey] == "true" {
		return
	}
	node.Spec.Taints = karpscheduling.Taints(node.Spec.Taints).Merge(nodeClaim.Spec.Taints).Merge(nodeClaim.Spec.StartupTaints)
	metav1.SetMetaDataLabel(&node.ObjectMeta, karpv1.NodeDoNotSyncTaintsLabelKey, "true")
}

// lacking reports whether a Node may need the taint.
func lacking(node *corev1.Node) bool {
	return node.DeletionTimestamp == nil && node.Spec.ProviderID != "" && node.Labels[karpv1.NodeRegisteredLabelKey] != "true" &&
		!slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&karpv1.UnregisteredNoExecuteTaint) })
}

// Register adds the controller to the guest's manager.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named(c.Name()).
		For(&corev1.Node{}, builder.WithPredicates(predicate.Funcs{
			CreateFunc: func(e event.CreateEvent) bool { return isLacking(e.Object) },
			// Skip heartbeats.
			UpdateFunc: func(e event.UpdateEvent) bool { return !isLacking(e.ObjectOld) && isLacking(e.ObjectNew) },
			DeleteFunc: func(event.DeleteEvent) bool { return false },
		})).
		WatchesRawSource(source.Kind(c.ManagementCache, &clusterv1.Machine{},
			handler.TypedEnqueueRequestsFromMapFunc(c.nodesOf), predicate.TypedFuncs[*clusterv1.Machine]{
				UpdateFunc: func(e event.TypedUpdateEvent[*clusterv1.Machine]) bool {
					return e.ObjectOld.Spec.ProviderID != e.ObjectNew.Spec.ProviderID
				},
				DeleteFunc: func(event.TypedDeleteEvent[*clusterv1.Machine]) bool { return false },
			})).
		WithOptions(ctrlcontroller.Options{MaxConcurrentReconciles: concurrency}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

func isLacking(object client.Object) bool {
	node, ok := object.(*corev1.Node)
	return ok && lacking(node)
}

// nodesOf maps a Machine whose provider ID was just set to a Node that joined before.
func (c *Controller) nodesOf(ctx context.Context, m *clusterv1.Machine) []reconcile.Request {
	if m.Spec.ProviderID == "" || !c.Machines.Owns(m) {
		return nil
	}
	nodes := &corev1.NodeList{}
	if err := c.Guest.List(ctx, nodes, client.MatchingFields{nodeProviderIDIndex: m.Spec.ProviderID},
		client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "finding the Node of a Machine", "Machine", klog.KObj(m))
		return nil
	}
	var requests []reconcile.Request
	for i := range nodes.Items {
		if lacking(&nodes.Items[i]) {
			requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Name: nodes.Items[i].Name}})
		}
	}
	return requests
}
