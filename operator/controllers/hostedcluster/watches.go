// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/clusterstatus"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/steps/component"
	"github.com/autonode-io/autonode/operator/steps/nodeupgrade"
)

// burst is how long to wait for more deleted Machines: fifty deleted at once make one or two reconciliations.
const burst = 500 * time.Millisecond

const controlPlaneNamespaceIndex = "autonode.io/control-plane-namespace"

// New adds the reconciler to the manager.
func New(ctx context.Context, config Config) (*Reconciler, error) {
	mgr := config.Manager
	r := &Reconciler{
		management: mgr.GetClient(),
		live:       mgr.GetAPIReader(),
		applier:    config.Applier,
		steps:      config.Steps,
		profiles:   config.Profiles,
		recorder:   config.Recorder,
		clock:      config.Clock,
		guests:     config.Guests,

		operatorNamespace: config.OperatorNamespace,
	}
	if r.clock == nil {
		r.clock = clock.RealClock{}
	}
	err := mgr.GetFieldIndexer().IndexField(ctx, &v1beta1.HostedCluster{}, controlPlaneNamespaceIndex, indexControlPlaneNamespace)
	if err != nil {
		return nil, fmt.Errorf("indexing hosted clusters by control-plane namespace: %w", err)
	}
	if err := r.watch(mgr, config); err != nil {
		return nil, fmt.Errorf("setting up the HostedCluster controller: %w", err)
	}
	return r, nil
}

// anotherTemplate is a catalog that comes, goes, or names another template. Its prices change often and change nothing here.
var anotherTemplate = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, okBefore := e.ObjectOld.(*v1alpha1.InstanceTypeCatalog)
	after, okAfter := e.ObjectNew.(*v1alpha1.InstanceTypeCatalog)
	return !okBefore || !okAfter || before.Spec.TemplateRef != after.Spec.TemplateRef || !maps.Equal(before.Labels, after.Labels)
}}

func indexControlPlaneNamespace(obj client.Object) []string {
	hostedCluster, ok := obj.(*v1beta1.HostedCluster)
	if !ok {
		return nil
	}
	return []string{hostedCluster.ControlPlaneNamespace()}
}

func (r *Reconciler) watch(mgr manager.Manager, config Config) error {
	workers := cmp.Or(config.Workers, Workers)
	limiter := newLimiter(workers, r.guests.Slow)
	ours := handler.EnqueueRequestsFromMapFunc(r.byLabels)
	changed := builder.WithPredicates(predicate.ResourceVersionChangedPredicate{})
	b := builder.ControllerManagedBy(mgr).
		Named("hostedcluster").
		For(&v1beta1.HostedCluster{}, builder.WithPredicates(predicate.Or(
			predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}, released,
		))).
		// A HostedCluster that releases its control-plane namespace unblocks another one.
		Watches(&v1beta1.HostedCluster{}, handler.EnqueueRequestsFromMapFunc(r.contenders), builder.WithPredicates(predicate.Funcs{
			CreateFunc: func(event.CreateEvent) bool { return false },
			UpdateFunc: func(e event.UpdateEvent) bool { return claims(e.ObjectOld) && !claims(e.ObjectNew) },
		})).
		// Others may upgrade their nodes after it, or wait for each other by the labels that it has or had.
		Watches(&v1beta1.HostedCluster{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, obj client.Object) []reconcile.Request {
			return r.requests(ctx, func(s *scope.Scope) bool { return nodeupgrade.WaitsFor(s.HostedCluster, obj) },
				client.InNamespace(obj.GetNamespace()))
		}), builder.WithPredicates(predicate.Funcs{
			CreateFunc: func(event.CreateEvent) bool { return false },
			UpdateFunc: func(e event.UpdateEvent) bool { return nodeupgrade.RingChanged(e.ObjectOld, e.ObjectNew) },
		})).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(r.byNamespace), changed).
		// The Namespace or the Cluster may consent.
		Watches(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(r.byControlPlaneNamespace), builder.OnlyMetadata,
			builder.WithPredicates(predicate.AnnotationChangedPredicate{})).
		// Karpenter's Role names their templates' kinds.
		Watches(&clusterv1.MachineDeployment{}, handler.EnqueueRequestsFromMapFunc(r.byNamespace), builder.WithPredicates(predicate.Or(
			predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{},
		))).
		// So it does for catalogs.
		Watches(&v1alpha1.InstanceTypeCatalog{},
			handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, object client.Object) []reconcile.Request {
				if object.GetNamespace() == config.SharedCatalogNamespace {
					return r.all(ctx, object)
				}
				return r.byNamespace(ctx, object)
			}), builder.WithPredicates(anotherTemplate)).
		// The last one's deletion ends a drain, and one that hangs is reported.
		Watches(&clusterv1.Machine{}, handler.Funcs{UpdateFunc: r.machineDeleting, DeleteFunc: r.machineGone}).
		Watches(&v1beta1.ControlPlaneComponent{}, ours, changed).
		// This includes another operator's component, whose HostedCluster isn't visible.
		Watches(&v1beta1.ControlPlaneComponent{}, handler.EnqueueRequestsFromMapFunc(r.byNamespace), builder.WithPredicates(onlyDeleted)).
		// Restored after an edit or a deletion. Only the Deployment is cached with more than its metadata.
		Watches(&appsv1.Deployment{}, ours, changed).
		Watches(&corev1.Pod{}, ours, builder.WithPredicates(component.PodChanged())).
		Watches(&corev1.ServiceAccount{}, ours, changed, builder.OnlyMetadata).
		Watches(&corev1.Secret{}, ours, changed, builder.OnlyMetadata).
		Watches(&corev1.ConfigMap{}, ours, changed).
		Watches(&rbacv1.Role{}, ours, changed, builder.OnlyMetadata).
		Watches(&rbacv1.RoleBinding{}, ours, changed, builder.OnlyMetadata).
		Watches(&policyv1.PodDisruptionBudget{}, ours, changed, builder.OnlyMetadata).
		Watches(&networkingv1.NetworkPolicy{}, ours, changed, builder.OnlyMetadata).
		// A missing kind may be served now: of a provider, or PodMonitor.
		Watches(&apiextensionsv1.CustomResourceDefinition{}, handler.EnqueueRequestsFromMapFunc(r.all),
			builder.OnlyMetadata, changed).
		WithOptions(ctrlcontroller.Options{MaxConcurrentReconciles: workers, RateLimiter: limiter}).
		WatchesRawSource(&limiter.queue)
	for _, from := range config.Sources {
		b = b.WatchesRawSource(from)
	}
	if config.Templates != nil {
		// Karpenter's Role allows their references to Secrets.
		b = b.WatchesRawSource(source.Channel(config.Templates, handler.EnqueueRequestsFromMapFunc(r.byNamespace)))
	}
	return b.Complete(limiter.wrap(config.Shard.Reconciler(r)))
}

var (
	// released matches when an operator releases a HostedCluster that another one waits for.
	released = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*v1beta1.HostedCluster)
		after, ok2 := e.ObjectNew.(*v1beta1.HostedCluster)
		return ok && ok2 && before.Status.Operator != "" && after.Status.Operator == ""
	}}
	onlyDeleted = predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
)

// byLabels maps the operator's objects to the HostedCluster that they were created for. Labels alone prove nothing: whoever writes objects
// in a namespace could have the HostedClusters of all others reconciled in a loop.
func (r *Reconciler) byLabels(ctx context.Context, obj client.Object) []reconcile.Request {
	key := client.ObjectKey{
		Namespace: obj.GetLabels()[v1beta1.HostedClusterNamespaceLabel],
		Name:      obj.GetLabels()[v1beta1.HostedClusterLabel],
	}
	hostedCluster := &v1beta1.HostedCluster{}
	if r.management.Get(ctx, key, hostedCluster) != nil || hostedCluster.ControlPlaneNamespace() != obj.GetNamespace() {
		return nil
	}
	return []reconcile.Request{{NamespacedName: key}}
}

// byNamespace maps an object in a control-plane namespace to that namespace's HostedClusters.
func (r *Reconciler) byNamespace(ctx context.Context, obj client.Object) []reconcile.Request {
	return r.requests(ctx, func(s *scope.Scope) bool {
		_, isCluster := obj.(*clusterv1.Cluster)
		return !isCluster || s.ClusterKey().Name == obj.GetName()
	}, client.MatchingFields{controlPlaneNamespaceIndex: obj.GetNamespace()})
}

// byControlPlaneNamespace maps a namespace to the HostedClusters whose control plane it is for.
func (r *Reconciler) byControlPlaneNamespace(ctx context.Context, obj client.Object) []reconcile.Request {
	return r.requests(ctx, func(*scope.Scope) bool { return true }, client.MatchingFields{controlPlaneNamespaceIndex: obj.GetName()})
}

// machineGone enqueues the HostedClusters that may wait for the Machine's deletion.
func (r *Reconciler) machineGone(ctx context.Context, e event.DeleteEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	cluster := client.ObjectKey{Namespace: e.Object.GetNamespace(), Name: e.Object.GetLabels()[clusterv1.ClusterNameLabel]}
	m, ok := e.Object.(*clusterv1.Machine)
	hung := ok && clusterstatus.Hangs(m, r.clock.Now())
	for _, request := range r.requests(ctx, func(s *scope.Scope) bool {
		return (hung || s.Draining() && holds(s.HostedCluster)) && s.ClusterKey() == cluster
	}, client.MatchingFields{controlPlaneNamespaceIndex: cluster.Namespace}) {
		queue.AddAfter(request, burst)
	}
}

// machineDeleting enqueues the HostedCluster of a Machine whose deletion has begun, for when it hangs, and of one that hangs and reports
// why.
func (r *Reconciler) machineDeleting(ctx context.Context, e event.UpdateEvent,
	queue workqueue.TypedRateLimitingInterface[reconcile.Request],
) {
	before, okBefore := e.ObjectOld.(*clusterv1.Machine)
	after, okAfter := e.ObjectNew.(*clusterv1.Machine)
	if !okBefore || !okAfter || after.Labels[v1alpha1.NodeClaimUIDLabel] == "" {
		return
	}
	from, deleting := clusterstatus.HangsFrom(after)
	if _, known := clusterstatus.HangsFrom(before); !deleting || known && clusterstatus.Holds(before) == clusterstatus.Holds(after) {
		return
	}
	cluster := client.ObjectKey{Namespace: after.Namespace, Name: after.Labels[clusterv1.ClusterNameLabel]}
	for _, request := range r.requests(ctx,
		func(s *scope.Scope) bool { return s.HostedCluster.Spec.AutoNode != nil && s.ClusterKey() == cluster },
		client.MatchingFields{controlPlaneNamespaceIndex: cluster.Namespace}) {
		queue.AddAfter(request, max(from.Sub(r.clock.Now()), burst))
	}
}

// contenders maps a HostedCluster to the others that want its control-plane namespace.
func (r *Reconciler) contenders(ctx context.Context, obj client.Object) []reconcile.Request {
	hostedCluster, ok := obj.(*v1beta1.HostedCluster)
	if !ok {
		return nil
	}
	return r.requests(ctx, func(s *scope.Scope) bool { return s.HostedCluster.UID != hostedCluster.UID },
		client.MatchingFields{controlPlaneNamespaceIndex: hostedCluster.ControlPlaneNamespace()})
}

// all maps to every HostedCluster that uses AutoNode.
func (r *Reconciler) all(ctx context.Context, _ client.Object) []reconcile.Request {
	return r.requests(ctx, func(s *scope.Scope) bool { return s.HostedCluster.Spec.AutoNode != nil })
}

func (r *Reconciler) requests(ctx context.Context, wanted func(*scope.Scope) bool, opts ...client.ListOption) []reconcile.Request {
	list := &v1beta1.HostedClusterList{}
	if err := r.management.List(ctx, list, opts...); err != nil {
		return nil // only when the cache is being stopped
	}
	var requests []reconcile.Request
	for i := range list.Items {
		s := &scope.Scope{HostedCluster: &list.Items[i], ControlPlaneNamespace: list.Items[i].ControlPlaneNamespace()}
		if wanted(s) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}
