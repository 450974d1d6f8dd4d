// SPDX-License-Identifier: Apache-2.0

package minsize

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

// Register adds the controller to the guest's manager.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named(c.Name()).
		Watches(&karpv1.NodeClaim{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, nodeClaim client.Object) []reconcile.Request {
			return c.sourceOf(c.Machines.ForNodeClaim(ctx, nodeClaim.GetUID()))
		}), builder.WithPredicates(predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
			before, okBefore := e.ObjectOld.(*karpv1.NodeClaim)
			after, okAfter := e.ObjectNew.(*karpv1.NodeClaim)
			return okBefore && okAfter && claimStateOf(before) != claimStateOf(after)
		}})).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, object client.Object) []reconcile.Request {
			node, ok := object.(*corev1.Node)
			if !ok {
				return nil
			}
			// A registered Node's Machine has its provider ID.
			requests := c.sourceOf(c.Machines.ForProviderID(ctx, node.Spec.ProviderID))
			if isKept(*node) {
				for _, request := range requests {
					c.marked.Store(request.Name, nil)
				}
			}
			return requests
		}), builder.WithPredicates(predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
			before, okBefore := e.ObjectOld.(*corev1.Node)
			after, okAfter := e.ObjectNew.(*corev1.Node)
			return okBefore && okAfter && nodeStateOf(before) != nodeStateOf(after)
		}})).
		// The instance type provider reports what they select.
		Watches(&v1alpha1.ClusterAPINodeClass{},
			handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{everything} }),
			builder.WithPredicates(predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }})).
		WatchesRawSource(source.Func(c.watchTemplates)).
		WatchesRawSource(source.Kind(c.ManagementCache, &clusterv1.Machine{},
			handler.TypedEnqueueRequestsFromMapFunc(func(_ context.Context, m *clusterv1.Machine) []reconcile.Request {
				if !c.Machines.Owns(m) {
					return nil
				}
				return c.sourceOf(m, nil)
			}), predicate.TypedFuncs[*clusterv1.Machine]{UpdateFunc: func(e event.TypedUpdateEvent[*clusterv1.Machine]) bool {
				return machine.Source(e.ObjectOld) != machine.Source(e.ObjectNew)
			}})).
		Complete(c)
}

// sourceOf returns the request for a Machine's source. Without a Machine there is none: its own event follows, or was
// before.
func (c *Controller) sourceOf(m *clusterv1.Machine, err error) []reconcile.Request {
	switch {
	case errors.Is(err, machine.ErrNotFound):
		return nil
	case err != nil:
		return []reconcile.Request{everything}
	case machine.Source(m) == "":
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: machine.Source(m)}}}
}

// watchTemplates reconciles when a source's minimum may have changed.
func (c *Controller) watchTemplates(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	c.InstanceTypes.OnChange(func() { queue.Add(everything) })
	// The templates may have been resolved before this subscription.
	queue.Add(everything)
	return nil
}

// claimState holds the fields of a NodeClaim that affect the choice.
type claimState struct {
	uid                          types.UID
	node, providerID             string
	registered, drifted, leaving bool
}

func claimStateOf(nodeClaim *karpv1.NodeClaim) claimState {
	// StatusConditions would add missing conditions to the object, which is shared with the cache.
	isTrue := func(condition string) bool {
		for i := range nodeClaim.Status.Conditions {
			if nodeClaim.Status.Conditions[i].Type == condition {
				return nodeClaim.Status.Conditions[i].IsTrue()
			}
		}
		return false
	}
	return claimState{
		uid:        nodeClaim.UID,
		node:       nodeClaim.Status.NodeName,
		providerID: nodeClaim.Status.ProviderID,
		registered: isTrue(karpv1.ConditionTypeRegistered),
		drifted:    isTrue(karpv1.ConditionTypeDrifted),
		// Karpenter clears the second, and the node's taint, if it can't launch the replacement.
		leaving: nodeClaim.DeletionTimestamp != nil || isTrue(karpv1.ConditionTypeDisruptionReason),
	}
}

// nodeState holds the fields of a Node that affect the choice.
type nodeState struct {
	providerID                string
	registered, leaving, kept bool
	keptFor, doNotDisrupt     string
}

func nodeStateOf(node *corev1.Node) nodeState {
	return nodeState{
		providerID: node.Spec.ProviderID,
		registered: node.Labels[karpv1.NodeRegisteredLabelKey] == "true",
		// The taint is written first. A mark decided on before that conflicts with it.
		leaving:      node.DeletionTimestamp != nil || slices.ContainsFunc(node.Spec.Taints, isDisrupted),
		kept:         isKept(*node),
		keptFor:      node.Annotations[v1alpha1.KeptForMinimumAnnotation],
		doNotDisrupt: node.Annotations[karpv1.DoNotDisruptAnnotationKey],
	}
}

func isDisrupted(taint corev1.Taint) bool { return taint.MatchTaint(&karpv1.DisruptedNoScheduleTaint) }

func isKept(node corev1.Node) bool {
	_, kept := node.Annotations[v1alpha1.KeptForMinimumAnnotation]
	return kept
}
