// SPDX-License-Identifier: Apache-2.0

// Package hostedcluster reconciles a HostedCluster: it decides whether AutoNode is on, waiting or off, runs the
// steps, and summarizes their results. It writes the status once per reconciliation, and only if something changed.
package hostedcluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/clusterstatus/consent"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/controllers/shard"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/scope"
)

// conflictRetry is the requeue interval after a conflict, so that the cache can catch up.
const conflictRetry = 50 * time.Millisecond

// Step is a step and when it runs.
type Step struct {
	scope.Step
	// Modes in which it runs.
	Modes scope.Mode
	// RunWhenBlocked reports whether the step runs although one before it waits or failed, given the Scope. Nil means never.
	RunWhenBlocked func(s *scope.Scope) bool
}

// Observer is a Step that reports something even while a step before it waits: it reads, and writes only status.
type Observer interface {
	Observe(ctx context.Context, s *scope.Scope) error
}

// Guests handles unresponsive guests. See guest.Connections.
type Guests interface {
	// Lost reports whether an error of a step means an unresponsive guest: that is no error but a reason to wait. It
	// removes the guest from the scope.
	Lost(s *scope.Scope, err error) (scope.Result, bool)
	// Slow reports whether a HostedCluster's guest has lately held a worker for long.
	Slow(hostedCluster client.ObjectKey) bool
}

// Config is the input of New.
type Config struct {
	// Manager of the management cluster.
	Manager manager.Manager
	// Recorder writes events on HostedClusters.
	Recorder events.EventRecorder
	// Shard selects this operator's HostedClusters.
	Shard *shard.Shard
	// Applier writes the ControlPlaneComponent.
	Applier *apply.Applier
	// Steps run in this order, each in its modes. When none of mode Draining waits, everything is removed, and so is
	// the finalizer.
	Steps []Step
	// Profiles are the cloud providers that HostedClusters may choose.
	Profiles provider.Profiles
	// Guests detects errors of unresponsive guests.
	Guests Guests
	// Sources trigger reconciles beside the reconciler's own watches.
	Sources []source.Source
	// Templates has the templates whose references to Secrets have changed.
	Templates <-chan event.GenericEvent
	// Clock defaults to the real one.
	Clock clock.PassiveClock
	// Workers is how many HostedClusters are reconciled at a time; zero is the default.
	Workers int
	// OperatorNamespace is the operator's namespace, which can't be a control plane's.
	OperatorNamespace string
	// SharedCatalogNamespace is the namespace of the catalogs that every hosted cluster may use; empty for none.
	SharedCatalogNamespace string
}

// Reconciler reconciles HostedClusters.
type Reconciler struct {
	management client.Client
	live       client.Reader
	applier    *apply.Applier
	steps      []Step
	profiles   provider.Profiles
	recorder   events.EventRecorder
	clock      clock.PassiveClock
	guests     Guests
	failing    failing
	access     sharedAccess
	// operatorNamespace is Config's.
	operatorNamespace string
}

var _ reconcile.ObjectReconciler[*v1beta1.HostedCluster] = (*Reconciler)(nil)

// +kubebuilder:rbac:groups=autonode.io,resources=hostedclusters,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=autonode.io,resources=hostedclusters/status,verbs=patch
// A component is created and not applied, and no name can be demanded of that:
// +kubebuilder:rbac:groups=autonode.io,resources=controlplanecomponents,verbs=list;watch;create
// +kubebuilder:rbac:groups=autonode.io,resources=controlplanecomponents,resourceNames=karpenter,verbs=get;patch
// The component owns the objects that are made, and blocks its own deletion with them:
// +kubebuilder:rbac:groups=autonode.io,resources=controlplanecomponents/finalizers,resourceNames=karpenter,verbs=update
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters;machinedeployments;machines,verbs=list;watch
// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile does all that is possible now and records its progress in status.
func (r *Reconciler) Reconcile(ctx context.Context, hostedCluster *v1beta1.HostedCluster) (reconcile.Result, error) {
	s := &scope.Scope{HostedCluster: hostedCluster, ControlPlaneNamespace: hostedCluster.ControlPlaneNamespace()}
	conflicting, err := r.observe(ctx, s)
	if err != nil {
		return reconcile.Result{}, err
	}

	before := hostedCluster.Status.DeepCopy()
	o := r.reconcile(ctx, s, conflicting)
	if ctx.Err() != nil {
		// Leadership was lost or the operator is shutting down: errors from that say nothing about the cluster.
		return reconcile.Result{}, ctx.Err()
	}
	if o.resuming && o.err() == nil && o.state != off {
		return reconcile.Result{RequeueAfter: o.requeueAfter}, nil
	}
	if problem, after, err := r.infrastructure(ctx, s); err != nil {
		o.errs = append(o.errs, err)
	} else {
		o.infrastructure = problem
		o.requeue(after)
	}
	r.conclude(s, o)
	bound(hostedCluster)
	if err := r.applyStatus(ctx, before, hostedCluster); apierrors.IsConflict(err) {
		// A lagging cache is no error.
		return reconcile.Result{RequeueAfter: conflictRetry}, nil
	} else if err != nil {
		return reconcile.Result{}, errors.Join(o.err(), err)
	}
	if o.state == off && holds(hostedCluster) {
		if err := r.removeFinalizer(ctx, s); err != nil {
			return reconcile.Result{}, err
		}
	}
	if err := o.err(); err != nil {
		return reconcile.Result{}, err // it is tried again with back-off, whatever else is due
	}
	return reconcile.Result{RequeueAfter: o.requeueAfter}, nil
}

// observe reads the scope's objects. It returns the owner, as namespace/name, of another HostedCluster's component in
// the control-plane namespace. This operator may not see that HostedCluster.
func (r *Reconciler) observe(ctx context.Context, s *scope.Scope) (conflicting string, err error) {
	cluster := &clusterv1.Cluster{}
	switch err := r.management.Get(ctx, s.ClusterKey(), cluster); {
	case err == nil:
		s.Cluster = cluster
	case !apierrors.IsNotFound(err):
		return "", fmt.Errorf("reading the Cluster: %w", err)
	}

	component := &v1beta1.ControlPlaneComponent{}
	switch err := r.management.Get(ctx, s.ComponentKey(), component); {
	case err == nil && ownsComponent(s, component):
		s.Component = component
	case err == nil:
		conflicting = ownerOf(component)
	case client.IgnoreNotFound(err) != nil:
		return "", fmt.Errorf("reading the ControlPlaneComponent: %w", err)
	}
	s.Profile = r.profiles[provider.PlatformOf(s.HostedCluster, s.Component)]
	return conflicting, nil
}

// state is one of the three states that AutoNode can be in, or a variant of one.
type state int

const (
	on       state = iota // the steps ran as far as they could
	waiting               // the spec can't be followed; nothing that runs was changed
	paused                // a user has paused it
	draining              // AutoNode is being turned off
	off                   // and nothing of it is left
)

// outcome is the result of one reconciliation.
type outcome struct {
	state state
	// blocked: not every step ran.
	blocked bool
	// resuming: this process doesn't know the state yet; see scope.Result.
	resuming bool
	// message describes the reason why the reconciliation waits; empty if it doesn't.
	message string
	// infrastructure is the problem that keeps it from making and deleting machines; empty for none.
	infrastructure string
	// reason is AutoNodeEnabled's reason, if it isn't the default; see scope.Result.
	reason       string
	errs         []error
	requeueAfter time.Duration
}

func (o *outcome) err() error { return errors.Join(o.errs...) }

func (o *outcome) requeue(after time.Duration) {
	o.requeueAfter = scope.Sooner(o.requeueAfter, after)
}

// reconcile chooses the mode and runs its steps.
func (r *Reconciler) reconcile(ctx context.Context, s *scope.Scope, conflicting string) *outcome {
	hostedCluster := s.HostedCluster
	if moved(hostedCluster) {
		return r.leave(ctx, s)
	}
	owned := s.Component != nil || holds(hostedCluster) && conflicting == "" // another owner's objects aren't torn down
	enabled := !s.Draining()
	if !enabled && !owned {
		return &outcome{state: off}
	}

	if !enabled && s.Component == nil {
		// A finalizer, which anyone may write, doesn't authorize access to another tenant's control plane. Objects
		// are created only after the component.
		switch reachable, err := consent.ToRemove(ctx, r.management, hostedCluster, s.ClusterKey()); {
		case err != nil:
			return &outcome{state: draining, blocked: true, errs: []error{err}}
		case !reachable:
			if nodes := lastCount(s); nodes > 0 {
				return unproven(s, nodes)
			}
			return &outcome{state: off}
		}
	}

	if p := r.pause(s); p.paused {
		return r.keep(ctx, s, p)
	}

	if !enabled && s.Profile == nil {
		return &outcome{state: draining, blocked: true,
			message: fmt.Sprintf("Karpenter was made for platform %q, which this operator doesn't know; run one that does",
				provider.PlatformOf(hostedCluster, s.Component))}
	}
	if !enabled {
		if o := r.drainShared(ctx, s); o != nil {
			return o
		}
		o := &outcome{state: draining}
		s.Upkeep = func(ctx context.Context) error { return r.upkeep(ctx, s) }
		r.run(ctx, s, scope.Draining, o)
		if !o.blocked && len(o.errs) == 0 {
			o.state = off
		}
		return o
	}

	o := &outcome{state: on}
	decision, err := r.validate(ctx, s, conflicting)
	if err != nil {
		o.errs = append(o.errs, fmt.Errorf("validating the spec: %w", err))
		return o
	}
	setCondition(hostedCluster, v1beta1.ValidConfiguration, decision.status(), decision.reason, decision.message)
	if decision.reason != v1beta1.AsExpectedReason {
		o.state, o.blocked, o.message = waiting, true, decision.message
		o.requeue(decision.recheck)
		if decision.fatal {
			return o
		}
	} else if err := r.claim(ctx, s); err != nil {
		o.errs, o.blocked = append(o.errs, err), true
		return o
	}
	r.run(ctx, s, scope.On, o)
	return o
}

// keep keeps a pause in effect.
func (r *Reconciler) keep(ctx context.Context, s *scope.Scope, p pause) *outcome {
	pausedScope := *s
	pausedScope.HostedCluster = s.HostedCluster.DeepCopy()
	o := &outcome{}
	r.run(ctx, &pausedScope, scope.Paused, o)
	parts := []string{p.message}
	if err := o.err(); err != nil {
		parts = append(parts, "but Karpenter may still run: "+err.Error())
	} else if o.message != "" {
		parts = append(parts, o.message)
	}
	o.state, o.message = paused, strings.Join(parts, "; ")
	o.requeue(p.resumesAfter)
	return o
}

// run runs a mode's steps until one waits or fails. After that it runs only the steps with RunWhenBlocked, and the others' observations.
func (r *Reconciler) run(ctx context.Context, s *scope.Scope, mode scope.Mode, o *outcome) {
	s.Mode = mode
	for _, step := range r.steps {
		if step.Modes&mode == 0 {
			continue
		}
		logger := log.FromContext(ctx).WithValues("step", step.Name())
		stepCtx := log.IntoContext(ctx, logger)
		if o.blocked && (step.RunWhenBlocked == nil || !step.RunWhenBlocked(s)) {
			if observer, ok := step.Step.(Observer); ok {
				if err := observer.Observe(stepCtx, s); err != nil {
					o.errs = append(o.errs, fmt.Errorf("%s: %w", step.Name(), err))
				}
			}
			continue
		}
		result, err := step.Reconcile(stepCtx, s)
		if lost, ok := r.guests.Lost(s, err); ok {
			logger.V(1).Info("The guest doesn't answer", "error", err.Error())
			result, err = lost, nil
		}
		if err != nil {
			o.errs = append(o.errs, fmt.Errorf("%s: %w", step.Name(), err))
		}
		o.blocked = o.blocked || result.Wait || err != nil
		o.resuming = o.resuming || result.Resuming
		o.message, o.reason = cmp.Or(o.message, result.Message), cmp.Or(o.reason, result.Reason)
		o.requeue(result.RequeueAfter)
	}
}

// upkeep runs the steps that keep Karpenter running during a drain, until one fails.
func (r *Reconciler) upkeep(ctx context.Context, s *scope.Scope) error {
	mode := s.Mode
	s.Mode = scope.Upkeep
	defer func() { s.Mode = mode }()
	for _, step := range r.steps {
		if step.Modes&scope.Upkeep == 0 {
			continue
		}
		if _, err := step.Reconcile(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", step.Name(), err)
		}
	}
	return nil
}

// applyStatus writes the status if it changed, and an event per changed condition.
func (r *Reconciler) applyStatus(ctx context.Context, before *v1beta1.HostedClusterStatus, after *v1beta1.HostedCluster) error {
	if equality.Semantic.DeepEqual(*before, after.Status) {
		return nil
	}
	if err := apply.Status(ctx, r.management, after, statusFields); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.record(before, after)
	return nil
}

// ownsComponent reports whether the component is this HostedCluster's, and not that of another one in the same
// control-plane namespace.
func ownsComponent(s *scope.Scope, component *v1beta1.ControlPlaneComponent) bool {
	name, labelled := component.Labels[v1beta1.HostedClusterLabel]
	return !labelled || name == s.HostedCluster.Name &&
		component.Labels[v1beta1.HostedClusterNamespaceLabel] == s.HostedCluster.Namespace
}

// ownerOf returns the HostedCluster that a component was created for, as namespace/name.
func ownerOf(component *v1beta1.ControlPlaneComponent) string {
	return component.Labels[v1beta1.HostedClusterNamespaceLabel] + "/" + component.Labels[v1beta1.HostedClusterLabel]
}
