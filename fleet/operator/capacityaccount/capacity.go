// SPDX-License-Identifier: Apache-2.0

// Package capacityaccount divides the reservations, quotas and commitments of CapacityAccounts among hosted clusters. It counts the
// Machines of all clusters of an account, records each one's grant in the account's status, and writes that into the CapacityLease in each
// control-plane namespace. The rules by which this is safe with several operators, stale caches and crashes are in package division.
//
// An operator serves the accounts that its selector matches, as it does with HostedClusters. If several serve the same one, only one of
// them can replace a record.
package capacityaccount

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/fleet/division"
	"github.com/autonode-io/autonode/operator/apply"
)

const (
	// maxClusters is the number of clusters that an account serves: the record has to fit into one object.
	maxClusters = 200
	// idle is how long a cluster keeps amounts that it doesn't need.
	idle = time.Minute
	// silent is how long a Karpenter may take to acknowledge a lease before a condition reports it.
	silent = 5 * time.Minute
	// figures is the least time between two writes of a status in which nothing but figures changed.
	figures = 5 * time.Second
	// hints is the least time between two writes of a lease in which nothing but hints changed, and hintsOfEach is that for each cluster: a
	// machine of one changes the prices of all.
	hints, hintsOfEach = 2 * time.Second, 100 * time.Millisecond
	// lag is how long the cache may lag behind the API server.
	lag = 50 * time.Millisecond
)

// Config of a Controller.
type Config struct {
	// Management reads from the cache and writes.
	Management client.Client
	// Live reads the objects that quotas name from the API server.
	Live client.Reader
	// Selector matches the accounts that this operator serves.
	Selector labels.Selector
	// Recorder writes events on accounts.
	Recorder events.EventRecorder
	// Clock is the real one if nil.
	Clock clock.PassiveClock
}

// Controller divides the capacity of accounts.
type Controller struct {
	Config
	counter *machineCounter
	// reports are the costs of each account's machines, by its name, as they were last counted.
	reports sync.Map
	// memory of each account, by name. It is lost when the process ends: then nothing is idle or silent for a while.
	memory map[string]*memory
}

// memory is a Controller's memory of an account.
type memory struct {
	uid types.UID
	// since is when observations began.
	since map[observation]time.Time
	// hinted is when a cluster's lease was last written, and reported when the status was.
	hinted   map[string]time.Time
	reported time.Time
	closed   unavailableReports
	// reclaims are those of each cluster, with deadlines by this operator's clock.
	reclaims map[string]division.Reclaims
	// quotas are the readings of limits, by dump of their source.
	quotas map[string]reading[limitReading]
	// rates are the readings of ConfigMaps that commitments name.
	rates map[autonodev1alpha1.CapacityRatesSource]reading[map[string]float64]
}

// observation is what an account's controller observes of a cluster, a pool or a commitment.
type observation struct{ kind, name string }

// New returns a Controller. SetUp starts it.
func New(config Config) *Controller {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	return &Controller{Config: config, counter: newMachineCounter(), memory: map[string]*memory{}}
}

// +kubebuilder:rbac:groups=autonode.io,resources=capacityaccounts,verbs=list;watch;patch
// +kubebuilder:rbac:groups=autonode.io,resources=capacityaccounts/status,verbs=patch
// +kubebuilder:rbac:groups=autonode.io,resources=capacityleases,verbs=list;watch;create
// +kubebuilder:rbac:groups=autonode.io,resources=capacityleases,resourceNames=karpenter,verbs=patch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=list;watch

// SetUp adds the controller to the manager.
func (c *Controller) SetUp(mgr manager.Manager) error {
	all := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, _ client.Object) []reconcile.Request { return c.all(ctx) })
	err := ctrl.NewControllerManagedBy(mgr).Named("capacity").
		For(&autonodev1alpha1.CapacityAccount{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		// An account that is deleted or claims other clusters may release some to another.
		Watches(&autonodev1alpha1.CapacityAccount{}, all, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&autonodev1alpha1.CapacityLease{}, handler.EnqueueRequestsFromMapFunc(c.ofLease),
			builder.WithPredicates(predicate.ResourceVersionChangedPredicate{})).
		Watches(&v1beta1.ControlPlaneComponent{}, all,
			builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}))).
		Watches(&corev1.Namespace{}, all, builder.OnlyMetadata, builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Watches(&clusterv1.Machine{}, c.counter.handler()).
		Complete(reconcile.AsReconciler(c.Management, c))
	if err != nil {
		return fmt.Errorf("setting up the controller of capacity accounts: %w", err)
	}
	return nil
}

func (c *Controller) all(ctx context.Context) []reconcile.Request {
	list := &autonodev1alpha1.CapacityAccountList{}
	if err := c.Management.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "listing capacity accounts")
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKey{Name: list.Items[i].Name}})
	}
	return requests
}

// ofLease reconciles the account of a lease; without one, any account may claim it.
func (c *Controller) ofLease(ctx context.Context, object client.Object) []reconcile.Request {
	lease, ok := object.(*autonodev1alpha1.CapacityLease)
	if !ok {
		return nil
	}
	if _, ok := v1beta1.NamesOf(lease); !ok {
		return nil
	}
	if lease.Spec.Account == nil {
		return c.all(ctx)
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: lease.Spec.Account.Name}}}
}

// Reconcile decides the grants of an account's clusters. It records them first, and writes leases second.
func (c *Controller) Reconcile(ctx context.Context, found *autonodev1alpha1.CapacityAccount) (reconcile.Result, error) {
	if !c.Selector.Matches(labels.Set(found.Labels)) {
		return reconcile.Result{}, nil
	}
	if found.DeletionTimestamp.IsZero() && !controllerutil.ContainsFinalizer(found, autonodev1alpha1.AccountFinalizer) {
		before := found.DeepCopy()
		controllerutil.AddFinalizer(found, autonodev1alpha1.AccountFinalizer)
		if err := c.patchLocked(ctx, found, before); err != nil {
			return retry(fmt.Errorf("adding the finalizer: %w", err))
		}
	}
	r, err := c.begin(ctx, found)
	if err != nil {
		return retry(err)
	}
	r.decide()
	r.spend()
	if written, err := r.record(ctx); err != nil {
		return retry(err)
	} else if written {
		r.recordEvents()
	}
	if err := r.grant(ctx); err != nil {
		return retry(err)
	}
	if !found.DeletionTimestamp.IsZero() && len(r.found.Status.Clusters) == 0 {
		before := found.DeepCopy()
		if controllerutil.RemoveFinalizer(found, autonodev1alpha1.AccountFinalizer) {
			if err := c.patchLocked(ctx, found, before); err != nil {
				return retry(fmt.Errorf("removing the finalizer: %w", err))
			}
		}
		delete(c.memory, found.Name)
		c.reports.Delete(found.Name)
		c.counter.follow(found.Name, nil)
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: r.after}, nil
}

// patchLocked writes an object unless it has changed since it was read.
func (c *Controller) patchLocked(ctx context.Context, changed, before client.Object) error {
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	return c.Management.Patch(ctx, changed, patch, client.FieldOwner(apply.FieldOwner))
}

// retry reads again where another write was faster or the cache lags, which is no error.
func retry(err error) (reconcile.Result, error) {
	switch {
	case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err):
		return reconcile.Result{RequeueAfter: lag}, nil
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, err
}
