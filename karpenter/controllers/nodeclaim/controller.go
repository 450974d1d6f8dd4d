// SPDX-License-Identifier: Apache-2.0

// Package nodeclaim reports the state of a Machine in its NodeClaim: its provider ID, insufficient capacity, failure,
// deletion by a user, and that the Machine is gone. Karpenter core does the rest.
package nodeclaim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
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
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/metrics"
	"sigs.k8s.io/karpenter/pkg/operator/injection"
	nodeclaimutils "sigs.k8s.io/karpenter/pkg/utils/nodeclaim"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/clusterstatus"
	"github.com/autonode-io/autonode/karpenter/core/reconciler"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/profile"
)

// concurrency is limited by the load on the guest's API server. A reconcile mostly reads memory.
const concurrency = 100

// suspendedInterval is the requeue interval while the management cluster doesn't answer.
const suspendedInterval = 5 * time.Second

// Config of the controller.
type Config struct {
	// Guest reads NodeClaims from the cache and writes them.
	Guest client.Client
	// GuestLive reads Nodes and NodeClaims from the API server.
	GuestLive client.Reader
	// ManagementCache is watched for Machines.
	ManagementCache cache.Cache
	CloudProvider   karpcloudprovider.CloudProvider
	Machines        *machine.Provider
	// Infrastructure reads infrastructure machines from a cache of their own. If nil, only the Machine's conditions
	// count.
	Infrastructure Infrastructure
	// Profiles have the meanings of infrastructure machines' conditions.
	Profiles    *profile.Profiles
	Unavailable *offering.Unavailable
	// InstanceTypes know which quotas of the infrastructure count a machine.
	InstanceTypes *instancetype.Provider
	// Alternative returns the cheapest available offering for a NodeClaim beside that of its Machine, and the capacity of its machines.
	Alternative func(ctx context.Context, nodeClaim *karpv1.NodeClaim, current offering.Key) (offering.Key, corev1.ResourceList, bool)
	// Rejections are the offerings that a NodePool doesn't get.
	Rejections *offering.Rejections
	// Suspended reports whether nothing may act, because the management cluster doesn't answer and cached Machines
	// may be out of date.
	Suspended func() bool
	// WakeNode and WakeNodeClaim make Karpenter core look again at a Node, or at a NodeClaim, whose Machine is gone.
	WakeNode, WakeNodeClaim func(name string)
	Recorder                events.Recorder
	Clock                   clock.Clock
}

// Infrastructure reads and follows objects of kinds that are known only at run time. *informer.Set implements it.
type Infrastructure interface {
	machine.Infrastructure
	OnObject(f func(kind schema.GroupKind, object *unstructured.Unstructured))
}

// Controller reconciles a NodeClaim with its Machine.
type Controller struct {
	Config
	finalization finalization
	repair       *repair
	latency      *latency
	deadline     *deadline
	steps        []step
}

// step handles one aspect of a NodeClaim that isn't being deleted, and of its Machine.
type step interface {
	reconcile(ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine) (outcome, error)
}

// outcome of a step.
type outcome struct {
	// done: later steps are skipped.
	done bool
	// requeueAfter is the requeue interval; 0 for none.
	requeueAfter time.Duration
}

// New returns the controller.
func New(config Config) *Controller {
	times := newLaunchTimes()
	repair, latency, deadline := newRepair(config), newLatency(config, times), &deadline{Config: config}
	return &Controller{Config: config, finalization: finalization{config}, repair: repair, latency: latency, deadline: deadline, steps: []step{
		&removal{config, repair},
		&reboot{config},
		&instance{config},
		&nodeDeleted{config},
		repair,
		&failure{config},
		&identity{Config: config, written: reconciler.NewLedger()},
		&clusterReady{config},
		&slow{Config: config, times: times, deadline: deadline},
		latency,
		&capacityShortfall{config},
		deadline,
	}}
}

// Name of the controller.
func (c *Controller) Name() string { return "nodeclaim.machine" }

// Reconcile reports the Machine's state in its NodeClaim.
func (c *Controller) Reconcile(ctx context.Context, nodeClaim *karpv1.NodeClaim) (reconcile.Result, error) {
	ctx = injection.WithControllerName(ctx, c.Name())
	if c.Suspended() {
		return reconcile.Result{RequeueAfter: suspendedInterval}, c.deadline.suspend(ctx, nodeClaim)
	}
	if nodeClaim.DeletionTimestamp != nil {
		c.repair.forget(ctx, nodeClaim)
		c.latency.forget(nodeClaim)
		after, err := c.finalization.reconcile(ctx, nodeClaim)
		return reconcile.Result{RequeueAfter: after}, err
	}
	if !nodeClaim.StatusConditions().Get(karpv1.ConditionTypeLaunched).IsTrue() {
		// Karpenter hasn't stored Create's result yet.
		return reconcile.Result{}, nil
	}
	m, err := c.Machines.ForNodeClaim(ctx, nodeClaim.UID)
	if errors.Is(err, machine.ErrNotFound) {
		// Either the cache lags, or the Machine is gone and Karpenter's garbage collection deletes the NodeClaim.
		c.repair.forget(ctx, nodeClaim)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("reconciling NodeClaim %s: %w", nodeClaim.Name, err)
	}
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithValues("Machine", klog.KObj(m)))
	result := reconcile.Result{}
	for _, s := range c.steps {
		o, err := s.reconcile(ctx, nodeClaim, m)
		if err != nil {
			return reconcile.Result{}, err
		}
		if o.requeueAfter > 0 && (result.RequeueAfter == 0 || o.requeueAfter < result.RequeueAfter) {
			result.RequeueAfter = o.requeueAfter
		}
		if o.done {
			break
		}
	}
	return result, nil
}

// Register adds the controller to the guest's manager.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named(c.Name()).
		For(&karpv1.NodeClaim{}, builder.WithPredicates(nodeclaimutils.IsManagedPredicateFuncs(c.CloudProvider))).
		Watches(&v1alpha1.ClusterAPINodeClass{}, nodeclaimutils.NodeClassEventHandler(m.GetClient()),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WatchesRawSource(source.Func(c.watchInfrastructure)).
		WatchesRawSource(source.Channel(c.repair.enqueued, handler.TypedFuncs[string, reconcile.Request]{
			GenericFunc: func(_ context.Context, e event.TypedGenericEvent[string], queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				queue.Add(request(e.Object))
			},
		})).
		WatchesRawSource(source.Kind(c.ManagementCache, &clusterv1.Machine{},
			handler.TypedEnqueueRequestsFromMapFunc(c.nodeClaimOf), predicate.TypedFuncs[*clusterv1.Machine]{
				UpdateFunc:  func(e event.TypedUpdateEvent[*clusterv1.Machine]) bool { return matters(e.ObjectOld, e.ObjectNew) },
				GenericFunc: func(event.TypedGenericEvent[*clusterv1.Machine]) bool { return false },
			})).
		WatchesRawSource(source.Kind(c.ManagementCache, &clusterv1.Cluster{},
			handler.TypedEnqueueRequestsFromMapFunc(c.waitingFor), predicate.TypedFuncs[*clusterv1.Cluster]{
				CreateFunc: func(e event.TypedCreateEvent[*clusterv1.Cluster]) bool { return clusterstatus.NotReady(e.Object) != "" },
				UpdateFunc: func(e event.TypedUpdateEvent[*clusterv1.Cluster]) bool {
					return clusterstatus.NotReady(e.ObjectOld) != clusterstatus.NotReady(e.ObjectNew)
				},
				DeleteFunc:  func(event.TypedDeleteEvent[*clusterv1.Cluster]) bool { return false },
				GenericFunc: func(event.TypedGenericEvent[*clusterv1.Cluster]) bool { return false },
			})).
		WithOptions(ctrlcontroller.Options{MaxConcurrentReconciles: concurrency}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// nodeClaimOf maps a Machine to its NodeClaim, and to one NodeClaim whose repair it may have
// blocked.
func (c *Controller) nodeClaimOf(ctx context.Context, m *clusterv1.Machine) []reconcile.Request {
	if !c.Machines.Owns(m) {
		return nil
	}
	requests := []reconcile.Request{request(v1alpha1.NodeClaimOf(m))}
	for pool := range sets.New("", m.Labels[karpv1.NodePoolLabelKey]) {
		for _, name := range c.repair.waiting(ctx, pool) {
			requests = append(requests, request(name))
		}
	}
	return requests
}

// waitingFor maps the Cluster to the NodeClaims whose Machines wait for its infrastructure.
func (c *Controller) waitingFor(ctx context.Context, cluster *clusterv1.Cluster) (requests []reconcile.Request) {
	if cluster.Name != c.Machines.ClusterName || cluster.Namespace != c.Machines.Namespace {
		return nil
	}
	err := c.Machines.Each(ctx, func(m *clusterv1.Machine) {
		if !c.provisioned(ctx, m) {
			requests = append(requests, request(v1alpha1.NodeClaimOf(m)))
		}
	})
	if err != nil {
		log.FromContext(ctx).Error(err, "listing the Machines that wait for the Cluster's infrastructure")
	}
	return requests
}

// watchInfrastructure maps an infrastructure machine to its NodeClaim.
func (c *Controller) watchInfrastructure(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	if c.Infrastructure != nil {
		c.Infrastructure.OnObject(func(_ schema.GroupKind, object *unstructured.Unstructured) {
			if c.Machines.Owns(object) {
				queue.Add(request(v1alpha1.NodeClaimOf(object)))
			}
		})
	}
	return nil
}

func request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}

// matters filters out updates that no step reads.
func matters(before, after *clusterv1.Machine) bool {
	return before.Spec.ProviderID != after.Spec.ProviderID ||
		(before.DeletionTimestamp == nil) != (after.DeletionTimestamp == nil) ||
		!slices.EqualFunc(before.Status.Conditions, after.Status.Conditions, sameWords) ||
		!slices.EqualFunc(conditionsOfMachine(before), conditionsOfMachine(after), sameWords)
}

func sameWords(a, b metav1.Condition) bool {
	return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}

// giveUp deletes a NodeClaim, so that Karpenter launches a replacement for its pods. It reports false if the
// NodeClaim has changed since it was read; the caller requeues.
func (c Config) giveUp(ctx context.Context, nodeClaim *karpv1.NodeClaim, reason string) (bool, error) {
	err := c.Guest.Delete(ctx, nodeClaim, client.Preconditions{UID: &nodeClaim.UID, ResourceVersion: &nodeClaim.ResourceVersion})
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("deleting NodeClaim %s: %w", nodeClaim.Name, err)
	}
	metrics.NodeClaimsDisruptedTotal.Inc(map[string]string{
		metrics.ReasonLabel:              reason,
		metrics.NodePoolLabel:            nodeClaim.Labels[karpv1.NodePoolLabelKey],
		metrics.CapacityTypeLabel:        nodeClaim.Labels[karpv1.CapacityTypeLabelKey],
		metrics.ConsolidationPolicyLabel: "",
		metrics.TerminationModeLabel:     nodeclaimutils.DisruptionTerminationMode(nodeClaim),
	})
	return true, nil
}

// patchStatus writes the status of a NodeClaim that was changed since stored. A conflict is no error but done: the conflicting change
// triggers the next reconcile.
func (c Config) patchStatus(ctx context.Context, nodeClaim, stored *karpv1.NodeClaim) (outcome, error) {
	err := c.Guest.Status().Patch(ctx, nodeClaim, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return outcome{done: true}, nil
	case err != nil:
		return outcome{}, fmt.Errorf("writing the status of NodeClaim %s: %w", nodeClaim.Name, err)
	}
	return outcome{}, nil
}

// get reads an object of the guest from the cache. The object is shared: don't modify it. A missing object stays
// empty.
func (c Config) get(ctx context.Context, name string, object client.Object) error {
	return client.IgnoreNotFound(c.Guest.Get(ctx, types.NamespacedName{Name: name}, object, client.UnsafeDisableDeepCopy))
}
