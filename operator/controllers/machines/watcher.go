// SPDX-License-Identifier: Apache-2.0

// Package machines warns when Cluster API falls behind a burst of Machines, as it does with the rate limits that it
// ships with. It has a provider that reports failures late look at its infrastructure sooner.
package machines

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
)

const (
	// grace is how long a Machine may wait for its first status. Cluster API writes one at the beginning of its first
	// reconciliation.
	grace = 15 * time.Second
	// enough Machines that wait longer are a warning: a single one may have a reason of its own.
	enough = 10
	// interval is the least time between two warnings about the same Cluster.
	interval = time.Hour
	// late is how long Machines may wait for their instances until the provider has to look at its session, and the least time between two
	// looks at the same Cluster.
	late = time.Minute
	// lateProvider is the kind of the infrastructure clusters whose provider looks at its session at its sync only. Others notice an
	// unreachable infrastructure when they create a machine.
	lateProvider = "VSphereCluster"
)

// Config of a Watcher.
type Config struct {
	// Management reads Machines and Clusters, and annotates infrastructure clusters.
	Management client.Client
	// HostedClusters returns those that stand for a Cluster.
	HostedClusters func(ctx context.Context, cluster client.ObjectKey) ([]v1beta1.HostedCluster, error)
	// Recorder writes events on HostedClusters.
	Recorder events.EventRecorder
	// Clock is the real one if nil.
	Clock clock.Clock
}

// Watcher warns about Machines that Cluster API hasn't begun with, and requests a look at the infrastructure for those that wait for it.
type Watcher struct {
	Config
	// warned holds the Clusters of which it warned within interval, requested those with a request within late.
	warned, requested *utilcache.Expiring
}

// New returns a Watcher. SetUp starts it.
func New(config Config) *Watcher {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	return &Watcher{
		Config: config, warned: utilcache.NewExpiringWithClock(config.Clock), requested: utilcache.NewExpiringWithClock(config.Clock),
	}
}

// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machines,verbs=get;list;watch

// SetUp adds the controller to the manager. A request names a Cluster; the Machines created within grace share one.
func (w *Watcher) SetUp(mgr manager.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).Named("machines").
		Watches(&clusterv1.Machine{}, handler.Funcs{
			CreateFunc: func(_ context.Context, e event.CreateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				cluster := client.ObjectKey{Namespace: e.Object.GetNamespace(), Name: e.Object.GetLabels()[clusterv1.ClusterNameLabel]}
				queue.AddAfter(reconcile.Request{NamespacedName: cluster}, grace)
			},
		}, builder.WithPredicates(predicate.NewPredicateFuncs(func(object client.Object) bool {
			machine, ok := object.(*clusterv1.Machine)
			return ok && v1alpha1.MadeForNodeClaim(machine) && machine.Status.Phase == ""
		}))).
		Complete(w)
	if err != nil {
		return fmt.Errorf("setting up the controller of Machines: %w", err)
	}
	return nil
}

// Reconcile counts the Machines of a Cluster that wait for Cluster API, and warns on its HostedCluster. It also counts those that wait for
// their instances.
func (w *Watcher) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	cluster, now := request.NamespacedName, w.Clock.Now()
	list := &clusterv1.MachineList{}
	if err := w.Management.List(ctx, list, client.InNamespace(cluster.Namespace),
		client.MatchingLabels{clusterv1.ClusterNameLabel: cluster.Name},
		client.HasLabels{v1alpha1.NodeClaimUIDLabel}, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("listing the Machines of Cluster %s: %w", cluster, err)
	}
	waiting, overdue, result := 0, 0, reconcile.Result{}
	for i := range list.Items {
		machine := &list.Items[i]
		age := now.Sub(machine.CreationTimestamp.Time)
		switch {
		case machine.DeletionTimestamp != nil:
		case machine.Status.Phase == string(clusterv1.MachinePhaseProvisioning):
			if result.RequeueAfter == 0 {
				result.RequeueAfter = late
			}
			if age >= late {
				overdue++
			}
		case machine.Status.Phase != "":
		case age < grace:
			result.RequeueAfter = grace
		default:
			waiting++
		}
	}
	_, warned := w.warned.Get(cluster)
	_, requested := w.requested.Get(cluster)
	if warned = warned || waiting < enough; warned && (requested || overdue < 2) {
		return result, nil
	}
	hostedClusters, err := w.HostedClusters(ctx, cluster)
	if err != nil {
		return reconcile.Result{}, err
	}
	i := slices.IndexFunc(hostedClusters, func(h v1beta1.HostedCluster) bool { return h.Spec.AutoNode != nil })
	if i < 0 {
		return reconcile.Result{}, nil
	}
	if !warned {
		w.warned.Set(cluster, nil, interval)
		w.Recorder.Eventf(&hostedClusters[i], nil, corev1.EventTypeWarning, v1beta1.ClusterAPIBehindReason, "ObserveMachines",
			"Cluster API has not begun with %d of %d Machines of Cluster %s after %s: it is down, or its rate limits are too low for this burst; "+
				"see --kube-api-qps in docs/platform/scale.md",
			waiting, len(list.Items), cluster, grace)
	}
	if requested || overdue < 2 {
		return result, nil
	}
	w.requested.Set(cluster, nil, late)
	return result, w.requestLook(ctx, cluster)
}

// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=vsphereclusters,verbs=patch

// requestLook changes an annotation of the infrastructure cluster, so that its provider reconciles it and reports on its session.
func (w *Watcher) requestLook(ctx context.Context, key client.ObjectKey) error {
	cluster := &clusterv1.Cluster{}
	if err := w.Management.Get(ctx, key, cluster); err != nil {
		return client.IgnoreNotFound(err)
	}
	ref := cluster.Spec.InfrastructureRef
	if ref.Kind != lateProvider || annotations.IsPaused(cluster, cluster) {
		return nil
	}
	mapping, err := w.Management.RESTMapper().RESTMapping(ref.GroupKind())
	if err != nil {
		return fmt.Errorf("looking up kind %s: %w", ref.GroupKind(), err)
	}
	object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: ref.Name}}
	object.SetGroupVersionKind(mapping.GroupVersionKind)
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1beta1.LookRequestedAtAnnotation,
		w.Clock.Now().UTC().Format(time.RFC3339))
	if err := w.Management.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("annotating %s %s/%s: %w", ref.Kind, key.Namespace, ref.Name, err)
	}
	return nil
}
