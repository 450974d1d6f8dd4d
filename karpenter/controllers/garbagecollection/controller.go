// SPDX-License-Identifier: Apache-2.0

// Package garbagecollection removes what a NodeClaim has left in the management cluster: Machines whose NodeClaim is gone, and
// infrastructure machines and bootstrap configs whose Machine never came. Karpenter never asks for their deletion, because a
// NodeClaim that goes before it has a provider ID goes without it.
//
// A sweep lists every kind of children past the caches, so it comes when something may have been left: when a NodeClaim or a Machine has gone, when a
// Machine has come, and when the program starts.
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
	// DefaultDelay is between something that may have left an orphan and the sweep for it: what goes together is swept together.
	DefaultDelay = 30 * time.Second
	// Interval between two sweeps while nothing goes. It is for what nobody saw going.
	Interval = 10 * time.Minute
	// GracePeriod is how long an object has to look orphaned before it is removed.
	GracePeriod = time.Minute
	// pageSize bounds what one list of children holds in memory.
	pageSize = 500
)

var reaped = prometheus.NewCounterVec(prometheus.CounterOpts{
	Namespace: "karpenter",
	Subsystem: "clusterapi",
	Name:      "orphans_reaped_total",
	Help:      "Objects in the management cluster that were removed because their NodeClaim is gone. Labeled by kind.",
}, []string{"kind"})

func init() { crmetrics.Registry.MustRegister(reaped) }

// Config of the sweep.
type Config struct {
	// Guest reads NodeClaims from the cache: one that is there is proof enough.
	Guest client.Reader
	// GuestLive reads NodeClaims past the cache: only an answer of the API server proves that one is gone.
	GuestLive client.Reader
	// ManagementLive reads children past the cache, which doesn't hold them all.
	ManagementLive client.Reader
	// ManagementCache is watched for Machines.
	ManagementCache cache.Cache
	Machines        *machine.Provider
	Clock           clock.Clock
	// Delay takes the place of DefaultDelay if it isn't zero.
	Delay time.Duration
}

// Controller sweeps.
type Controller struct {
	Config
	// suspects are what looked orphaned, and since when.
	suspects map[types.UID]time.Time
}

// New returns the sweep.
func New(config Config) *Controller {
	config.Delay = cmp.Or(config.Delay, DefaultDelay)
	return &Controller{Config: config, suspects: map[types.UID]time.Time{}}
}

// Name of the controller.
func (c *Controller) Name() string { return "machine.garbagecollection" }

// Register adds the sweep to the manager.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named(c.Name()).
		WatchesRawSource(singleton.Source()).
		WatchesRawSource(source.Kind(m.GetCache(), &karpv1.NodeClaim{}, handler.TypedFuncs[*karpv1.NodeClaim, reconcile.Request]{
			UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*karpv1.NodeClaim], queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				c.replaced(e.ObjectOld, e.ObjectNew, queue)
			},
			DeleteFunc: func(_ context.Context, _ event.TypedDeleteEvent[*karpv1.NodeClaim], queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				c.soon(queue)
			},
		})).
		WatchesRawSource(source.Kind(c.ManagementCache, &clusterv1.Machine{}, handler.TypedFuncs[*clusterv1.Machine, reconcile.Request]{
			// One may come after its NodeClaim has gone, and another may have been meant to come.
			CreateFunc: func(_ context.Context, _ event.TypedCreateEvent[*clusterv1.Machine], queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				c.soon(queue)
			},
			UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*clusterv1.Machine], queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				c.replaced(e.ObjectOld, e.ObjectNew, queue)
			},
			DeleteFunc: func(_ context.Context, _ event.TypedDeleteEvent[*clusterv1.Machine], queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				c.soon(queue)
			},
		})).
		Complete(singleton.AsReconciler(c))
}

// soon makes the next sweep come after the delay, if it isn't to come earlier.
func (c *Controller) soon(queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	queue.AddAfter(reconcile.Request{}, c.Delay)
}

// replaced hears of an object that has gone and come again while the connection was lost.
func (c *Controller) replaced(before, after client.Object, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	if before.GetUID() != after.GetUID() {
		c.soon(queue)
	}
}

// Reconcile sweeps once. One object that can't be judged or removed doesn't keep the others.
func (c *Controller) Reconcile(ctx context.Context) (reconciler.Result, error) {
	ctx = injection.WithControllerName(ctx, c.Name())
	paused, err := c.Machines.Paused(ctx)
	if err != nil {
		return reconciler.Result{}, err
	}
	if paused {
		// What is there now may be half of what is being moved.
		c.suspects = map[types.UID]time.Time{}
		return reconciler.Result{RequeueAfter: c.Delay}, nil
	}
	machines, err := c.Machines.List(ctx)
	if err != nil {
		return reconciler.Result{}, err
	}
	sweep := &sweep{Controller: c, nodeClaims: map[string]types.UID{}, suspects: map[types.UID]time.Time{}}
	err = errors.Join(sweep.machines(ctx, machines), sweep.children(ctx, machines))
	// What couldn't be judged this time has to look orphaned for the whole grace period again.
	c.suspects = sweep.suspects
	if err != nil {
		return reconciler.Result{}, err
	}
	return reconciler.Result{RequeueAfter: c.next()}, nil
}

// next is after how long to sweep again if nothing goes until then: as soon as a suspect's grace period is over.
func (c *Controller) next() time.Duration {
	next := Interval
	for _, since := range c.suspects {
		next = min(next, max(since.Add(GracePeriod).Sub(c.Clock.Now()), time.Second))
	}
	return next
}

// sweep is one pass. It asks the guest's API server only about NodeClaims that the cache doesn't have, and once each.
type sweep struct {
	*Controller
	// nodeClaims by name: the UID of the one that there is, "" for none.
	nodeClaims map[string]types.UID
	suspects   map[types.UID]time.Time
}

func (s *sweep) machines(ctx context.Context, machines []clusterv1.Machine) error {
	var errs []error
	for i := range machines {
		m := &machines[i]
		if m.DeletionTimestamp != nil {
			continue
		}
		errs = append(errs, s.judge(ctx, "Machine", m, func() (bool, error) { return s.nodeClaimGone(ctx, m) }))
	}
	return errors.Join(errs...)
}

func (s *sweep) children(ctx context.Context, machines []clusterv1.Machine) error {
	if s.Machines.ChildKinds == nil {
		return nil
	}
	referred := map[childKey]bool{}
	for i := range machines {
		for _, key := range childrenOf(&machines[i]) {
			referred[key] = true
		}
	}
	var errs []error
	for _, kind := range s.Machines.ChildKinds(ctx) {
		errs = append(errs, s.childrenOfKind(ctx, kind, referred))
	}
	return errors.Join(errs...)
}

// childKey is what a Machine refers to a child by, and whose that is.
type childKey struct {
	schema.GroupKind
	name, nodeClaimUID string
}

func childrenOf(m *clusterv1.Machine) []childKey {
	uid := m.Labels[v1alpha1.NodeClaimUIDLabel]
	return []childKey{
		{m.Spec.InfrastructureRef.GroupKind(), m.Spec.InfrastructureRef.Name, uid},
		{m.Spec.Bootstrap.ConfigRef.GroupKind(), m.Spec.Bootstrap.ConfigRef.Name, uid},
	}
}

func (s *sweep) childrenOfKind(ctx context.Context, kind schema.GroupVersionKind, referred map[childKey]bool) error {
	var errs []error
	for token := ""; ; {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		err := s.ManagementLive.List(ctx, list,
			client.InNamespace(s.Machines.Namespace),
			client.MatchingLabels{clusterv1.ClusterNameLabel: s.Machines.ClusterName},
			client.HasLabels{v1alpha1.NodeClaimUIDLabel},
			client.Limit(pageSize), client.Continue(token))
		switch {
		case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return errors.Join(append(errs, fmt.Errorf("listing %s: %w", kind.Kind, err))...)
		}
		for i := range list.Items {
			child := &list.Items[i]
			key := childKey{kind.GroupKind(), child.Name, child.Labels[v1alpha1.NodeClaimUIDLabel]}
			if child.DeletionTimestamp != nil || referred[key] {
				continue
			}
			child.SetGroupVersionKind(kind)
			errs = append(errs, s.judge(ctx, kind.Kind, child, func() (bool, error) { return s.abandoned(ctx, key, child) }))
		}
		if token = list.Continue; token == "" {
			return errors.Join(errs...)
		}
	}
}

// judge removes an object that has been orphaned for the grace period.
func (s *sweep) judge(ctx context.Context, kind string, object client.Object, orphaned func() (bool, error)) error {
	if !s.Machines.Owns(object) {
		return nil
	}
	yes, err := orphaned()
	if err != nil {
		return err
	}
	if !yes {
		return nil
	}
	now := s.Clock.Now()
	since, suspected := s.Controller.suspects[object.GetUID()]
	if !suspected {
		since = now
	}
	s.suspects[object.GetUID()] = since
	if now.Sub(since) < GracePeriod {
		return nil
	}
	if err := s.Machines.Reap(ctx, object); err != nil {
		return err
	}
	delete(s.suspects, object.GetUID())
	reaped.WithLabelValues(kind).Inc()
	log.FromContext(ctx).Info("removed object whose NodeClaim is gone", "kind", kind, "object", klog.KObj(object),
		"nodePool", object.GetLabels()[karpv1.NodePoolLabelKey], "instanceType", object.GetLabels()[corev1.LabelInstanceTypeStable])
	return nil
}

// nodeClaimGone tells whether the NodeClaim that an object was made for is gone, or replaced by another of its name.
func (s *sweep) nodeClaimGone(ctx context.Context, object client.Object) (bool, error) {
	name, wanted := object.GetName(), object.GetLabels()[v1alpha1.NodeClaimUIDLabel]
	cached := &karpv1.NodeClaim{}
	if err := s.Guest.Get(ctx, types.NamespacedName{Name: name}, cached, client.UnsafeDisableDeepCopy); err == nil && string(cached.UID) == wanted {
		return false, nil
	}
	uid, known := s.nodeClaims[name]
	if !known {
		nodeClaim := &karpv1.NodeClaim{}
		err := s.GuestLive.Get(ctx, types.NamespacedName{Name: name}, nodeClaim)
		if err != nil && !saysGone(err, name) {
			return false, fmt.Errorf("reading NodeClaim %s: %w", name, err)
		}
		if err == nil {
			uid = nodeClaim.UID
		}
		s.nodeClaims[name] = uid
	}
	return string(uid) != wanted, nil
}

// saysGone tells "there is no such object" from "there is no such resource", which an API server says while its CRDs are
// missing or not served yet.
func saysGone(err error, name string) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Name == name && len(details.Causes) == 0
}

// abandoned tells whether a child belongs to no Machine and never will: its NodeClaim is gone and there is no Machine, or the
// Machine that there is refers to another child.
func (s *sweep) abandoned(ctx context.Context, key childKey, child client.Object) (bool, error) {
	m := &clusterv1.Machine{}
	err := s.ManagementLive.Get(ctx, client.ObjectKeyFromObject(child), m)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("reading Machine %s: %w", klog.KObj(child), err)
	}
	if err != nil || m.Labels[v1alpha1.NodeClaimUIDLabel] != key.nodeClaimUID {
		return s.nodeClaimGone(ctx, child)
	}
	return !slices.Contains(childrenOf(m), key), nil
}
