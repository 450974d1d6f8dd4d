// SPDX-License-Identifier: Apache-2.0

// Package garbagecollection deletes a NodeClaim's leftovers in the management cluster: Machines whose NodeClaim is
// gone, and infrastructure machines and bootstrap configs whose Machine was never created. Karpenter doesn't delete
// those itself: a NodeClaim that has no provider ID yet is removed without a call of the cloud provider.
//
// A collection lists every Machine, and every kind of infrastructure and bootstrap object from the API server, so it
// runs only when something may have been left: after a NodeClaim is deleted without its Machine, after a Machine is
// deleted without its infrastructure, after a Machine is created without its NodeClaim, and at startup. An ordinary
// launch or deletion is none of these; caches say so.
package garbagecollection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/awslabs/operatorpkg/singleton"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	crmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/operator/injection"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

const (
	// DefaultDelay is between an event that may have left objects behind and the collection for it, so that one
	// collection handles many events.
	DefaultDelay = 30 * time.Second
	// Interval between two collections without events. It covers missed events.
	Interval = 10 * time.Minute
	// GracePeriod is how long an object has to be unowned before it is deleted.
	GracePeriod = time.Minute
	// pageSize bounds how many objects one list holds in memory.
	pageSize = 500
)

var collected = prometheus.NewCounterVec(prometheus.CounterOpts{
	Namespace: "karpenter",
	Subsystem: "clusterapi",
	Name:      "garbage_collected_objects_total",
	Help:      "Objects in the management cluster that were removed because their NodeClaim is gone. Labeled by kind.",
}, []string{"kind"})

func init() { crmetrics.Registry.MustRegister(collected) }

// Config of the controller.
type Config struct {
	// Guest reads NodeClaims from the cache: a NodeClaim that is cached exists.
	Guest client.Reader
	// GuestLive reads NodeClaims from the API server: only its answer proves that a NodeClaim is gone.
	GuestLive client.Reader
	// ManagementLive reads infrastructure and bootstrap objects from the API server. The cache doesn't hold all of
	// them.
	ManagementLive client.Reader
	// ManagementCache is watched for Machines.
	ManagementCache cache.Cache
	Machines        *machine.Provider
	// Infrastructure reads infrastructure machines from a cache. If nil, every deleted Machine triggers a collection.
	Infrastructure machine.Infrastructure
	Clock          clock.Clock
	// Delay takes the place of DefaultDelay if it isn't zero.
	Delay time.Duration
}

// Controller deletes objects whose NodeClaim is gone.
type Controller struct {
	Config
	// requests wakes a collection. It has room for one event, since one collection serves all.
	requests chan event.GenericEvent
	// suspects holds since when each object has been unowned.
	suspects map[types.UID]time.Time
}

// New returns the controller.
func New(config Config) *Controller {
	config.Delay = cmp.Or(config.Delay, DefaultDelay)
	return &Controller{Config: config, requests: make(chan event.GenericEvent, 1), suspects: map[types.UID]time.Time{}}
}

// Name of the controller.
func (c *Controller) Name() string { return "machine.garbagecollection" }

// Register adds the controller to the manager.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named(c.Name()).
		WatchesRawSource(singleton.Source()).
		WatchesRawSource(source.Channel(c.requests, handler.Funcs{
			GenericFunc: func(_ context.Context, _ event.GenericEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				queue.Add(everything)
			},
		})).
		WatchesRawSource(source.Kind(m.GetCache(), &karpv1.NodeClaim{}, handler.TypedFuncs[*karpv1.NodeClaim, reconcile.Request]{
			UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*karpv1.NodeClaim],
				queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				c.replaced(e.ObjectOld, e.ObjectNew, queue)
			},
			DeleteFunc: func(ctx context.Context, e event.TypedDeleteEvent[*karpv1.NodeClaim],
				queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				if !c.hasTakenAll(ctx, e.Object) {
					c.soon(queue)
				}
			},
		})).
		WatchesRawSource(source.Kind(c.ManagementCache, &clusterv1.Machine{}, handler.TypedFuncs[*clusterv1.Machine, reconcile.Request]{
			// A Machine may be created after its NodeClaim is gone, or instead of another one, which is deleted.
			CreateFunc: func(ctx context.Context, e event.TypedCreateEvent[*clusterv1.Machine],
				queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				if !c.isClaimed(ctx, e.Object) {
					c.soon(queue)
				}
			},
			UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*clusterv1.Machine],
				queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				c.replaced(e.ObjectOld, e.ObjectNew, queue)
			},
			DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*clusterv1.Machine],
				queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				queue.AddAfter(c.departed(e.Object), c.Delay)
			},
		})).
		Complete(c.dispatch(singleton.AsReconciler(c)))
}

// everything is the request for a collection. Any other request names the infrastructure machine of a deleted Machine.
var everything = reconcile.Request{}

// departed is the request that checks the leftovers of a deleted Machine, or that for a collection.
func (c *Controller) departed(m *clusterv1.Machine) reconcile.Request {
	ref := m.Spec.InfrastructureRef
	if c.Infrastructure == nil || ref.Name == "" {
		return everything
	}
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: ref.GroupKind().String(), Name: ref.Name}}
}

// dispatch runs a collection, or checks one infrastructure machine. Cluster API deletes it before its Machine. If it is
// left, a collection follows, one for all that are left.
func (c *Controller) dispatch(collection reconcile.Reconciler) reconcile.Func {
	return func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		if request == everything {
			return collection.Reconcile(ctx, request)
		}
		if _, err := c.Infrastructure.Get(ctx, schema.ParseGroupKind(request.Namespace), request.Name); !apierrors.IsNotFound(err) {
			select {
			case c.requests <- event.GenericEvent{}:
			default: // the collection of an earlier event is still to come
			}
		}
		return reconcile.Result{}, nil
	}
}

// hasTakenAll reports whether a deleted NodeClaim has left no Machine. Karpenter has called the cloud provider's Delete
// until it found nothing left, if the NodeClaim had a provider ID and no person has removed its finalizer.
func (c *Controller) hasTakenAll(ctx context.Context, nodeClaim *karpv1.NodeClaim) bool {
	if nodeClaim.Status.ProviderID == "" {
		return false
	}
	m, err := c.Machines.ForNodeClaim(ctx, nodeClaim.UID)
	return errors.Is(err, machine.ErrNotFound) || err == nil && m.DeletionTimestamp != nil
}

// isClaimed reports whether the cache has the NodeClaim that an object was made for.
func (c *Controller) isClaimed(ctx context.Context, object client.Object) bool {
	nodeClaim := &karpv1.NodeClaim{}
	err := c.Guest.Get(ctx, types.NamespacedName{Name: v1alpha1.NodeClaimOf(object)}, nodeClaim, client.UnsafeDisableDeepCopy)
	return err == nil && string(nodeClaim.UID) == object.GetLabels()[v1alpha1.NodeClaimUIDLabel]
}

// soon schedules the next collection after the delay, unless one is due earlier.
func (c *Controller) soon(queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	queue.AddAfter(everything, c.Delay)
}

// replaced handles an object that was deleted and created again while the watch was disconnected.
func (c *Controller) replaced(before, after client.Object, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	if before.GetUID() != after.GetUID() {
		c.soon(queue)
	}
}

// Reconcile runs one collection. It continues after an object that it can't check or delete.
func (c *Controller) Reconcile(ctx context.Context) (reconciler.Result, error) {
	ctx = injection.WithControllerName(ctx, c.Name())
	paused, err := c.Machines.Paused(ctx)
	if err != nil {
		return reconciler.Result{}, err
	}
	if paused {
		// Objects may be half moved to another management cluster.
		c.suspects = map[types.UID]time.Time{}
		return reconciler.Result{RequeueAfter: c.Delay}, nil
	}
	machines, err := c.Machines.List(ctx)
	if err != nil {
		return reconciler.Result{}, err
	}
	pass := &collection{Controller: c, nodeClaims: map[string]types.UID{}, suspects: map[types.UID]time.Time{}}
	err = errors.Join(pass.machines(ctx, machines), pass.objects(ctx, machines))
	// An object that couldn't be checked starts its grace period again.
	c.suspects = pass.suspects
	if err != nil {
		return reconciler.Result{}, err
	}
	return reconciler.Result{RequeueAfter: c.next()}, nil
}

// next is the interval to the next collection without events: until the first suspect's grace period ends.
func (c *Controller) next() time.Duration {
	next := Interval
	for _, since := range c.suspects {
		next = min(next, max(since.Add(GracePeriod).Sub(c.Clock.Now()), time.Second))
	}
	return next
}

// collection is one pass. It queries the guest's API server only about NodeClaims that the cache lacks, and once each.
type collection struct {
	*Controller
	// nodeClaims holds the UID of each NodeClaim by name, "" if it doesn't exist.
	nodeClaims map[string]types.UID
	suspects   map[types.UID]time.Time
}

func (p *collection) machines(ctx context.Context, machines []clusterv1.Machine) error {
	var errs []error
	for i := range machines {
		m := &machines[i]
		if m.DeletionTimestamp != nil {
			continue
		}
		errs = append(errs, p.collect(ctx, "Machine", m, func() (bool, error) { return p.nodeClaimGone(ctx, m) }))
	}
	return errors.Join(errs...)
}

func (p *collection) objects(ctx context.Context, machines []clusterv1.Machine) error {
	if p.Machines.ChildKinds == nil {
		return nil
	}
	referred := map[objectRef]bool{}
	for i := range machines {
		for _, key := range refsOf(&machines[i]) {
			referred[key] = true
		}
	}
	var errs []error
	for _, kind := range p.Machines.ChildKinds(ctx) {
		errs = append(errs, p.objectsOfKind(ctx, kind, referred))
	}
	return errors.Join(errs...)
}

// objectRef is the kind, name and owner by which a Machine refers to an infrastructure or bootstrap object.
type objectRef struct {
	schema.GroupKind
	name, nodeClaimUID string
}

func refsOf(m *clusterv1.Machine) []objectRef {
	uid := m.Labels[v1alpha1.NodeClaimUIDLabel]
	return []objectRef{
		{m.Spec.InfrastructureRef.GroupKind(), m.Spec.InfrastructureRef.Name, uid},
		{m.Spec.Bootstrap.ConfigRef.GroupKind(), m.Spec.Bootstrap.ConfigRef.Name, uid},
	}
}

func (p *collection) objectsOfKind(ctx context.Context, kind schema.GroupVersionKind, referred map[objectRef]bool) error {
	var errs []error
	for token := ""; ; {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		err := p.ManagementLive.List(ctx, list,
			client.InNamespace(p.Machines.Namespace),
			client.MatchingLabels{clusterv1.ClusterNameLabel: p.Machines.ClusterName},
			client.HasLabels{v1alpha1.NodeClaimUIDLabel},
			client.Limit(pageSize), client.Continue(token))
		switch {
		case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return errors.Join(append(errs, fmt.Errorf("listing %s: %w", kind.Kind, err))...)
		}
		for i := range list.Items {
			object := &list.Items[i]
			key := objectRef{kind.GroupKind(), object.Name, object.Labels[v1alpha1.NodeClaimUIDLabel]}
			if object.DeletionTimestamp != nil || referred[key] {
				continue
			}
			object.SetGroupVersionKind(kind)
			errs = append(errs, p.collect(ctx, kind.Kind, object, func() (bool, error) { return p.abandoned(ctx, key, object) }))
		}
		if token = list.Continue; token == "" {
			return errors.Join(errs...)
		}
	}
}

// collect deletes an object that has been unowned for the grace period.
func (p *collection) collect(ctx context.Context, kind string, object client.Object, unowned func() (bool, error)) error {
	if !p.Machines.Owns(object) {
		return nil
	}
	yes, err := unowned()
	if err != nil {
		return err
	}
	if !yes {
		return nil
	}
	now := p.Clock.Now()
	since, suspected := p.Controller.suspects[object.GetUID()]
	if !suspected {
		since = now
	}
	p.suspects[object.GetUID()] = since
	if now.Sub(since) < GracePeriod {
		return nil
	}
	if err := p.Machines.GarbageCollect(ctx, object); err != nil {
		return err
	}
	delete(p.suspects, object.GetUID())
	collected.WithLabelValues(kind).Inc()
	log.FromContext(ctx).Info("deleted an object whose NodeClaim is gone", "kind", kind, "object", klog.KObj(object),
		"nodePool", object.GetLabels()[karpv1.NodePoolLabelKey], "instanceType", object.GetLabels()[corev1.LabelInstanceTypeStable])
	return nil
}

// nodeClaimGone reports whether the NodeClaim that an object was made for is gone, or replaced by another of its
// name.
func (p *collection) nodeClaimGone(ctx context.Context, object client.Object) (bool, error) {
	name, wanted := v1alpha1.NodeClaimOf(object), object.GetLabels()[v1alpha1.NodeClaimUIDLabel]
	if p.isClaimed(ctx, object) {
		return false, nil
	}
	uid, known := p.nodeClaims[name]
	if !known {
		nodeClaim := &karpv1.NodeClaim{}
		err := p.GuestLive.Get(ctx, types.NamespacedName{Name: name}, nodeClaim)
		if err != nil && !saysGone(err, name) {
			return false, fmt.Errorf("reading NodeClaim %s: %w", name, err)
		}
		if err == nil {
			uid = nodeClaim.UID
		}
		p.nodeClaims[name] = uid
	}
	return string(uid) != wanted, nil
}

// saysGone distinguishes "no such object" from "no such resource". An API server returns the latter while its CRDs
// are missing or not yet served.
func saysGone(err error, name string) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Name == name && len(details.Causes) == 0
}

// abandoned reports whether an infrastructure or bootstrap object has no Machine and never will: its NodeClaim is
// gone and there is no Machine, or the Machine refers to another object.
func (p *collection) abandoned(ctx context.Context, key objectRef, object client.Object) (bool, error) {
	name, err := p.Machines.InstanceName(ctx, v1alpha1.NodeClaimOf(object))
	if err != nil {
		return false, err
	}
	m := &clusterv1.Machine{}
	switch err := p.ManagementLive.Get(ctx, types.NamespacedName{Namespace: object.GetNamespace(), Name: name}, m); {
	case client.IgnoreNotFound(err) != nil:
		return false, fmt.Errorf("reading Machine %s/%s: %w", object.GetNamespace(), name, err)
	case err == nil && m.Labels[v1alpha1.NodeClaimUIDLabel] == key.nodeClaimUID:
		return !slices.Contains(refsOf(m), key), nil
	}
	return p.nodeClaimGone(ctx, object)
}
