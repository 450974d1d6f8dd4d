// SPDX-License-Identifier: Apache-2.0

// Package capacity divides the reservations, quotas and commitments of CapacityAccounts among hosted clusters. It counts the Machines of
// all clusters of an account, records what each is granted in the account's status, and writes that into the CapacityLease in each
// control-plane namespace. The rules by which this is safe with several operators, stale caches and crashes are in package capacity.
//
// An operator serves the accounts that its selector matches, as it does with HostedClusters. If several serve the same one, only one of
// them can replace a record.
package capacity

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

	"github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/operator/apply"
)

const (
	// maxClusters is the number of clusters that an account serves: the record has to fit into one object.
	maxClusters = 200
	// idle is how long a cluster keeps what it holds and doesn't need.
	idle = time.Minute
	// silent is how long a Karpenter may take to acknowledge a lease before a condition says so.
	silent = 5 * time.Minute
	// figures is the least time between two writes of a status in which nothing but figures changed.
	figures = 5 * time.Second
	// hints is the least time between two writes of a lease in which nothing but hints changed.
	hints = 2 * time.Second
	// lag is how long the cache may lag behind the API server.
	lag = 50 * time.Millisecond
)

// Config of a Controller.
type Config struct {
	// Management reads from the cache and writes.
	Management client.Client
	// Selector matches the accounts that this operator serves; nil matches all.
	Selector labels.Selector
	// Recorder writes events on accounts.
	Recorder events.EventRecorder
	// Clock is the real one if nil.
	Clock clock.PassiveClock
}

// Controller divides the capacity of accounts.
type Controller struct {
	Config
	tally *tally
	// memory of each account, by name. It is lost when the process ends: then nothing is idle or silent for a while.
	memory map[string]*memory
}

// memory is what a Controller remembers of an account.
type memory struct {
	uid types.UID
	// surplus is since when a cluster holds more than it needs, unacknowledged since when its lease is, and leaseless since when it has none.
	surplus, unacknowledged, leaseless map[string]time.Time
	// hinted is when a cluster's lease was last written, and reported when the status was.
	hinted   map[string]time.Time
	reported time.Time
	closed   board
}

// New returns a Controller. SetUp starts it.
func New(config Config) *Controller {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	if config.Selector == nil {
		config.Selector = labels.Everything()
	}
	return &Controller{Config: config, tally: newTally(), memory: map[string]*memory{}}
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
		For(&v1alpha1.CapacityAccount{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		// An account that is deleted or claims other clusters may release some to another.
		Watches(&v1alpha1.CapacityAccount{}, all, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.CapacityLease{}, handler.EnqueueRequestsFromMapFunc(c.ofLease), builder.WithPredicates(predicate.ResourceVersionChangedPredicate{})).
		Watches(&v1beta1.ControlPlaneComponent{}, all, builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}))).
		Watches(&corev1.Namespace{}, all, builder.OnlyMetadata, builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Watches(&clusterv1.Machine{}, c.tally.handler()).
		Complete(reconcile.AsReconciler(c.Management, c))
	if err != nil {
		return fmt.Errorf("setting up the controller of capacity accounts: %w", err)
	}
	return nil
}

func (c *Controller) all(ctx context.Context) []reconcile.Request {
	list := &v1alpha1.CapacityAccountList{}
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
	lease, ok := object.(*v1alpha1.CapacityLease)
	if !ok || lease.Name != v1alpha1.LeaseName {
		return nil
	}
	if lease.Spec.Account == nil {
		return c.all(ctx)
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: lease.Spec.Account.Name}}}
}

// Reconcile decides what the clusters of an account are granted. It records that first, and grants it second.
func (c *Controller) Reconcile(ctx context.Context, found *v1alpha1.CapacityAccount) (reconcile.Result, error) {
	if !c.Selector.Matches(labels.Set(found.Labels)) {
		return reconcile.Result{}, nil
	}
	if found.DeletionTimestamp.IsZero() && !controllerutil.ContainsFinalizer(found, v1alpha1.AccountFinalizer) {
		before := found.DeepCopy()
		controllerutil.AddFinalizer(found, v1alpha1.AccountFinalizer)
		if err := c.Management.Patch(ctx, found, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(apply.FieldOwner)); err != nil {
			return retry(fmt.Errorf("adding the finalizer: %w", err))
		}
	}
	r, err := c.begin(ctx, found)
	if err != nil {
		return retry(err)
	}
	r.decide()
	if written, err := r.record(ctx); err != nil {
		return retry(err)
	} else if written {
		r.announce()
	}
	if err := r.grant(ctx); err != nil {
		return retry(err)
	}
	if !found.DeletionTimestamp.IsZero() && len(r.found.Status.Clusters) == 0 {
		before := found.DeepCopy()
		if controllerutil.RemoveFinalizer(found, v1alpha1.AccountFinalizer) {
			if err := c.Management.Patch(ctx, found, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(apply.FieldOwner)); err != nil {
				return retry(fmt.Errorf("removing the finalizer: %w", err))
			}
		}
		delete(c.memory, found.Name)
		c.tally.follow(found.Name, nil)
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: r.after}, nil
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

// round is one reconciliation of an account.
type round struct {
	*Controller
	*memory
	found  *v1alpha1.CapacityAccount
	before *v1alpha1.CapacityAccountStatus
	now    time.Time
	// after is when to reconcile again; zero if a watch says so.
	after time.Duration

	account *account
	claims  *claims
	// clusters of the account and of its record, by key, and keys in order.
	clusters map[string]*cluster
	keys     []string
	machines int64
	running  []capacity.Running
	decision capacity.Decision
}

// cluster is one hosted cluster in a round.
type cluster struct {
	member *member // nil if it doesn't belong to the account any more
	// recorded is its entry in the record; nil if it joins.
	recorded *v1alpha1.CapacityGrant
	// lease of the account, and another object in its place.
	lease, other *v1alpha1.CapacityLease
	namespace    string
	pools        []v1alpha1.LeasedPool
	used         capacity.Amounts
	released     *metav1.Time
}

func (r *round) wake(after time.Duration) {
	if after = max(after, lag); r.after == 0 || after < r.after {
		r.after = after
	}
}

// begin reads all that a decision needs.
func (c *Controller) begin(ctx context.Context, found *v1alpha1.CapacityAccount) (*round, error) {
	m := c.memory[found.Name]
	if m == nil || m.uid != found.UID {
		m = &memory{
			uid: found.UID, surplus: map[string]time.Time{}, unacknowledged: map[string]time.Time{}, leaseless: map[string]time.Time{},
			hinted: map[string]time.Time{}, closed: board{},
		}
		c.memory[found.Name] = m
	}
	r := &round{Controller: c, memory: m, found: found, before: found.Status.DeepCopy(), now: c.Clock.Now(), clusters: map[string]*cluster{}}
	r.account = understand(&found.Spec, r.now)
	r.account.limit()
	if !r.account.next.IsZero() {
		r.wake(r.account.next.Sub(r.now))
	}
	var err error
	if r.claims, err = c.claimed(ctx, found, r.account); err != nil {
		return nil, err
	}
	for i := range found.Status.Clusters {
		recorded := &found.Status.Clusters[i]
		r.clusters[recorded.Namespace+"/"+recorded.Name] = &cluster{recorded: recorded, namespace: recorded.ControlPlaneNamespace, released: recorded.Released}
	}
	for key, member := range r.claims.members {
		if r.clusters[key] == nil {
			r.clusters[key] = &cluster{}
		}
		r.clusters[key].member, r.clusters[key].namespace = member, member.component.Namespace
	}
	r.keys = slices.Sorted(maps.Keys(r.clusters))
	namespaces := map[string]bool{}
	for _, key := range r.keys {
		namespaces[r.clusters[key].namespace] = true
		if err := r.read(ctx, r.clusters[key]); err != nil {
			return nil, err
		}
	}
	c.tally.follow(found.Name, namespaces)
	return r, nil
}

// read reads a cluster's lease, and counts what its Machines take.
func (r *round) read(ctx context.Context, of *cluster) error {
	lease := &v1alpha1.CapacityLease{}
	switch err := r.Management.Get(ctx, client.ObjectKey{Namespace: of.namespace, Name: v1alpha1.LeaseName}, lease); {
	case err == nil && lease.Spec.Account != nil && lease.Spec.Account.UID == string(r.found.UID):
		of.lease = lease
	case err == nil:
		of.other = lease
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("reading the CapacityLease of namespace %s: %w", of.namespace, err)
	}
	of.pools = r.account.pools
	if of.member != nil {
		of.pools = slices.Concat(of.pools, of.member.entry.limits)
		of.released = nil
	}
	charged := rules(of.pools)
	if of.released != nil {
		// It isn't limited any more, and what it has launched since isn't the account's.
		list := &clusterv1.MachineList{}
		if err := r.Management.List(ctx, list, client.InNamespace(of.namespace), client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("counting the Machines of namespace %s: %w", of.namespace, err)
		}
		of.used = usedBefore(list, of.released.Add(capacity.InFlight), charged)
		return nil
	}
	var machines int64
	of.used, machines = r.tally.of(of.namespace, charged, func(f form, count int64) {
		if len(r.account.commitments) > 0 {
			r.running = append(r.running, slices.Repeat([]capacity.Running{{Offering: f.Offering, Price: f.price}}, int(count))...)
		}
	})
	r.machines += machines
	return nil
}

// decide what each cluster is granted, by the rules of package capacity.
func (r *round) decide() {
	input := capacity.Account{
		Limits: r.account.limits, Members: make(map[string]capacity.Member, len(r.clusters)), Record: make(map[string]capacity.Grant, len(r.clusters)),
		First: r.now.Unix(),
	}
	for _, key := range r.keys {
		of := r.clusters[key]
		m := capacity.Member{Used: of.used, Leaving: of.member == nil}
		if of.recorded != nil {
			grant := grantOf(of.recorded)
			if of.released != nil && r.now.Sub(of.released.Time) > 2*capacity.InFlight {
				// What it held when it was released has come by now, or never will.
				grant.Granted = least(grant.Granted, of.used)
			}
			if of.lease != nil && of.lease.Spec.Sequence == grant.Sequence && !sameRules(of.lease.Spec.Pools, of.pools) {
				// As for another object, it has to acknowledge a newer sequence.
				grant.Lease = ""
			}
			input.Record[key] = grant
		}
		if of.lease != nil && of.released == nil {
			lease := of.lease.Lease()
			lease.Report = of.lease.BoundedReport()
			m.Lease = &lease
		}
		if of.member != nil {
			m.Priority, m.Guaranteed, m.Maximum = of.member.entry.priority, of.member.entry.guaranteed, of.member.entry.maximum
			m.Idle = r.isIdle(key, of, input.Record[key], &m)
		} else {
			m.Gone = r.isGone(key, of)
		}
		input.Members[key] = m
	}
	r.decision = capacity.Decide(input)
}

// isIdle reports whether a cluster has held more than it needs for long enough.
func (r *round) isIdle(key string, of *cluster, grant capacity.Grant, m *capacity.Member) bool {
	surplus := false
	for pool, asked := range grant.Asked {
		surplus = surplus || asked > max(of.used[pool], min(m.Guaranteed[pool], asked))
	}
	if !surplus || m.Lease == nil || len(m.Lease.Report.Requests) > 0 || m.Lease.Report.Sequence != grant.Sequence {
		delete(r.surplus, key)
		return false
	}
	return r.lasts(r.surplus, key, idle)
}

// lasts reports whether something that is true now has been for long enough, and reconciles again when it will have been.
func (r *round) lasts(since map[string]time.Time, key string, enough time.Duration) bool {
	if _, ok := since[key]; !ok {
		since[key] = r.now
	}
	left := since[key].Add(enough).Sub(r.now)
	if left > 0 {
		r.wake(left)
	}
	return left <= 0
}

// isGone reports whether neither Machines nor a Karpenter with a lease is left of a cluster that doesn't belong to the account any more. A
// request of a Karpenter that has just ended may still have its effect.
func (r *round) isGone(key string, of *cluster) bool {
	if of.lease != nil && of.released == nil || len(of.used) > 0 {
		delete(r.leaseless, key)
		return false
	}
	return r.lasts(r.leaseless, key, capacity.InFlight)
}

// acknowledged reports whether a cluster's Karpenter keeps what is recorded.
func acknowledged(of *cluster, grant capacity.Grant) bool {
	return of.lease != nil && string(of.lease.UID) == grant.Lease && of.lease.Status.AcknowledgedSequence == grant.Sequence && of.lease.Spec.Sequence == grant.Sequence
}

// record writes the status, and reports whether it did. Nothing may be granted that isn't recorded.
func (r *round) record(ctx context.Context) (bool, error) {
	r.summarize()
	after := &r.found.Status
	if equality.Semantic.DeepEqual(*r.before, *after) {
		return false, nil
	}
	still := r.before.DeepCopy()
	still.Pools, still.MachineCount, still.FullestPool = after.Pools, after.MachineCount, after.FullestPool
	if wait := r.reported.Add(figures).Sub(r.now); wait > 0 && equality.Semantic.DeepEqual(*still, *after) {
		r.wake(wait)
		return false, nil
	}
	if err := apply.Status(ctx, r.Management, r.found, own); err != nil {
		return false, err
	}
	r.reported = r.now
	return true, nil
}

// announce writes an event for each condition that has another reason now.
func (r *round) announce() {
	for _, kind := range []string{v1alpha1.EntriesUsable, v1alpha1.MembersGranted} {
		now, before := meta.FindStatusCondition(r.found.Status.Conditions, kind), meta.FindStatusCondition(r.before.Conditions, kind)
		if now == nil || before != nil && before.Reason == now.Reason || before == nil && now.Reason == v1alpha1.AsExpectedReason {
			continue
		}
		level := corev1.EventTypeNormal
		if now.Status != metav1.ConditionTrue || now.Reason == v1alpha1.SomeUnusableReason {
			level = corev1.EventTypeWarning
		}
		r.Recorder.Eventf(r.found, nil, level, now.Reason, "DivideCapacity", "%s", now.Message)
	}
}

// grantOf reads an entry of the record.
func grantOf(recorded *v1alpha1.CapacityGrant) capacity.Grant {
	grant := capacity.Grant{Lease: recorded.LeaseUID, Sequence: recorded.Sequence, Asked: capacity.Amounts{}, Granted: capacity.Amounts{}}
	for _, amount := range recorded.Amounts {
		asked := amount.Granted
		if amount.Asked != nil {
			asked = *amount.Asked
		}
		if asked != 0 {
			grant.Asked[amount.Pool] = asked
		}
		if amount.Granted != 0 {
			grant.Granted[amount.Pool] = amount.Granted
		}
	}
	return grant
}

// least returns the lesser of the amounts of each pool.
func least(a, b capacity.Amounts) capacity.Amounts {
	both := capacity.Amounts{}
	for pool, amount := range a {
		if amount = min(amount, b[pool]); amount > 0 {
			both[pool] = amount
		}
	}
	return both
}
