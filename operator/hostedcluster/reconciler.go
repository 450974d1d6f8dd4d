// SPDX-License-Identifier: Apache-2.0

// Package hostedcluster reconciles a HostedCluster: it decides whether AutoNode is on, waiting or off, runs the steps that do the
// jobs, and sums up what they say. It writes the object's status once per reconciliation, and only where something changed.
package hostedcluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/consent"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/shard"
)

// conflictRetry is how long to give the cache to see what was written.
const conflictRetry = 50 * time.Millisecond

// Step is a step and when it runs.
type Step struct {
	scope.Step
	// Anyway says that the step runs even though one before it waits or failed, with what the Scope holds then. Nil means never.
	Anyway func(s *scope.Scope) bool
}

// Observer is a Step that has something to report even while a step before it waits: it reads, and writes nothing but status.
type Observer interface {
	Observe(ctx context.Context, s *scope.Scope) error
}

// Guests deals with guests that don't answer. See guest.Connections.
type Guests interface {
	// Lost says whether an error of a step means that, in which case it is no error but a reason to wait. It takes the guest from the scope.
	Lost(s *scope.Scope, err error) (scope.Result, bool)
}

// Config is what New needs.
type Config struct {
	// Manager of the management cluster.
	Manager manager.Manager
	// Recorder writes events on HostedClusters.
	Recorder events.EventRecorder
	// Shard says which HostedClusters are this operator's.
	Shard *shard.Shard
	// Applier writes the ControlPlaneComponent.
	Applier *apply.Applier
	// Enabled are the steps that run while AutoNode is on, in order.
	Enabled []Step
	// Disabled are the steps that run while AutoNode is being turned off or the HostedCluster deleted, in order. When none of
	// them waits, everything is gone and the finalizer is removed.
	Disabled []Step
	// Paused are the steps that run while the HostedCluster is paused, in order: those that hold what runs. What they write to its
	// status is dropped; their messages say what the pause means.
	Paused []Step
	// Profiles are of the cloud providers that HostedClusters may choose from.
	Profiles provider.Profiles
	// Guests knows which errors of steps mean that the guest doesn't answer.
	Guests Guests
	// Sources wake the reconciler beside its own watches.
	Sources []source.Source
	// Clock tells the time; nil is the real one.
	Clock clock.PassiveClock
	// OwnNamespace is where the operator runs, and so no place for a control plane.
	OwnNamespace string
}

// Reconciler reconciles HostedClusters.
type Reconciler struct {
	management client.Client
	live       client.Reader
	applier    *apply.Applier
	enabled    []Step
	disabled   []Step
	paused     []Step
	profiles   provider.Profiles
	recorder   events.EventRecorder
	clock      clock.PassiveClock
	guests     Guests
	failing    failing
	// ownNamespace is Config's.
	ownNamespace string
}

var _ reconcile.ObjectReconciler[*v1beta1.HostedCluster] = (*Reconciler)(nil)

// +kubebuilder:rbac:groups=autonode.io,resources=hostedclusters,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=autonode.io,resources=hostedclusters/status,verbs=patch
// A component is created and not applied, and no name can be demanded of that:
// +kubebuilder:rbac:groups=autonode.io,resources=controlplanecomponents,verbs=list;watch;create
// +kubebuilder:rbac:groups=autonode.io,resources=controlplanecomponents,resourceNames=karpenter,verbs=get;patch
// The component owns what is made, and blocks its own deletion with it:
// +kubebuilder:rbac:groups=autonode.io,resources=controlplanecomponents/finalizers,resourceNames=karpenter,verbs=update
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters;machinedeployments;machines,verbs=list;watch
// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile does what can be done now and writes down how far it got.
func (r *Reconciler) Reconcile(ctx context.Context, hostedCluster *v1beta1.HostedCluster) (reconcile.Result, error) {
	s := &scope.Scope{HostedCluster: hostedCluster, ControlPlaneNamespace: controlPlaneNamespace(hostedCluster)}
	rival, err := r.observe(ctx, s)
	if err != nil {
		return reconcile.Result{}, err
	}

	before := hostedCluster.DeepCopy()
	o := r.reconcile(ctx, s, rival, &before)
	if ctx.Err() != nil {
		// The leadership was lost or the operator ends: what failed for that says nothing about the cluster.
		return reconcile.Result{}, ctx.Err()
	}
	if o.resuming && o.err() == nil && o.state != off {
		return reconcile.Result{RequeueAfter: o.requeueAfter}, nil
	}
	r.conclude(s, o)
	bound(hostedCluster)
	if err := r.applyStatus(ctx, before, hostedCluster); apierrors.IsConflict(err) {
		// The cache lags; that isn't worth an error.
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
		return reconcile.Result{}, err // it is tried again with back-off, whatever else was to be looked at
	}
	return reconcile.Result{RequeueAfter: o.requeueAfter}, nil
}

// observe fills the scope with what is there. It returns the HostedCluster, as namespace/name, whose component is in the control-plane
// namespace, if that is another one; it need not be one that this operator sees.
func (r *Reconciler) observe(ctx context.Context, s *scope.Scope) (rival string, err error) {
	cluster := &clusterv1.Cluster{}
	switch err := r.management.Get(ctx, s.ClusterKey(), cluster); {
	case err == nil:
		s.Cluster = cluster
	case !apierrors.IsNotFound(err):
		return "", fmt.Errorf("reading the Cluster: %w", err)
	}

	component := &v1beta1.ControlPlaneComponent{}
	switch err := r.management.Get(ctx, componentKey(s), component); {
	case err == nil && ownsComponent(s, component):
		s.Component = component
	case err == nil:
		rival = ownerOf(component)
	case client.IgnoreNotFound(err) != nil:
		return "", fmt.Errorf("reading the ControlPlaneComponent: %w", err)
	}
	s.Profile = r.profiles[provider.PlatformOf(s.HostedCluster, s.Component)]
	return rival, nil
}

// state is one of the three states that AutoNode can be in, or a variant of one.
type state int

const (
	on       state = iota // the steps ran as far as they could
	waiting               // the spec can't be followed; nothing that runs was changed
	paused                // somebody asked that nothing be changed
	draining              // AutoNode is being turned off
	off                   // and nothing of it is left
)

// outcome is what one reconciliation came to.
type outcome struct {
	state state
	// blocked says that not every step ran.
	blocked bool
	// resuming says that this process can't tell yet how things are; see scope.Result.
	resuming bool
	// message says what is waited for, empty for nothing.
	message string
	// reason is AutoNodeEnabled's where it isn't the usual one; see scope.Result.
	reason       string
	errs         []error
	requeueAfter time.Duration
}

func (o *outcome) err() error { return errors.Join(o.errs...) }

func (o *outcome) requeue(after time.Duration) {
	if after > 0 && (o.requeueAfter == 0 || after < o.requeueAfter) {
		o.requeueAfter = after
	}
}

// reconcile runs the steps. It replaces *before when it had to patch the object's metadata.
func (r *Reconciler) reconcile(ctx context.Context, s *scope.Scope, rival string, before **v1beta1.HostedCluster) *outcome {
	hostedCluster := s.HostedCluster
	owned := s.Component != nil || holds(hostedCluster) && rival == "" // what a rival has there isn't to be torn down
	enabled := hostedCluster.Spec.AutoNode != nil && hostedCluster.DeletionTimestamp.IsZero()
	if !enabled && !owned {
		return &outcome{state: off}
	}

	if err := r.recordConsent(ctx, s); err != nil {
		return &outcome{blocked: true, errs: []error{err}}
	}
	if !enabled && s.Component == nil {
		// A finalizer alone, which anyone may write, is no reason to reach a control plane of others. What is made, is made after the component.
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
		return &outcome{state: draining, blocked: true, message: fmt.Sprintf("Karpenter was made for platform %q, which this operator doesn't know; run one that does",
			provider.PlatformOf(hostedCluster, s.Component))}
	}
	if !enabled {
		o := &outcome{state: draining}
		r.run(ctx, s, r.disabled, o)
		if !o.blocked && len(o.errs) == 0 {
			o.state = off
		}
		return o
	}

	o := &outcome{state: on}
	verdict, err := r.validate(ctx, s, rival)
	if err != nil {
		o.errs = append(o.errs, fmt.Errorf("validating the spec: %w", err))
		return o
	}
	setCondition(hostedCluster, v1beta1.ValidConfiguration, verdict.status(), verdict.reason, verdict.message)
	if verdict.reason != v1beta1.AsExpectedReason {
		o.state, o.blocked, o.message = waiting, true, verdict.message
		o.requeue(verdict.recheck)
		if verdict.fatal {
			return o
		}
	} else if err := r.claim(ctx, s, before); err != nil {
		o.errs, o.blocked = append(o.errs, err), true
		return o
	}
	r.run(ctx, s, r.enabled, o)
	return o
}

// keep sees to it that a pause holds.
func (r *Reconciler) keep(ctx context.Context, s *scope.Scope, p pause) *outcome {
	frozen := *s
	frozen.HostedCluster = s.HostedCluster.DeepCopy()
	o := &outcome{}
	r.run(ctx, &frozen, r.paused, o)
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

// run runs steps until one waits or fails; behind that, only those that run anyway, and the others' observations.
func (r *Reconciler) run(ctx context.Context, s *scope.Scope, steps []Step, o *outcome) {
	for _, step := range steps {
		logger := log.FromContext(ctx).WithValues("step", step.Name())
		stepCtx := log.IntoContext(ctx, logger)
		if o.blocked && (step.Anyway == nil || !step.Anyway(s)) {
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
		if o.message == "" {
			o.message = result.Message
		}
		if o.reason == "" {
			o.reason = result.Reason
		}
		o.requeue(result.RequeueAfter)
	}
}

// applyStatus writes the status if it changed, and an event for each condition that did.
func (r *Reconciler) applyStatus(ctx context.Context, before, after *v1beta1.HostedCluster) error {
	if statusEqual(before, after) {
		return nil
	}
	if err := apply.Status(ctx, r.management, after, ownStatus); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.record(before, after)
	return nil
}

func describe(doing string, err error) error { return fmt.Errorf("%s: %w", doing, err) }

func componentKey(s *scope.Scope) client.ObjectKey {
	return client.ObjectKey{Namespace: s.ControlPlaneNamespace, Name: v1beta1.KarpenterComponent}
}

// ownsComponent is false for the component of another HostedCluster that shares the control-plane namespace.
func ownsComponent(s *scope.Scope, component *v1beta1.ControlPlaneComponent) bool {
	name, labelled := component.Labels[v1beta1.HostedClusterLabel]
	return !labelled || name == s.HostedCluster.Name &&
		component.Labels[v1beta1.HostedClusterNamespaceLabel] == s.HostedCluster.Namespace
}

// ownerOf names the HostedCluster that a component was made for, as namespace/name.
func ownerOf(component *v1beta1.ControlPlaneComponent) string {
	return component.Labels[v1beta1.HostedClusterNamespaceLabel] + "/" + component.Labels[v1beta1.HostedClusterLabel]
}

// controlPlaneNamespace is where the spec says the control plane is; validate says whether it may be there.
func controlPlaneNamespace(hostedCluster *v1beta1.HostedCluster) string {
	if hostedCluster.Spec.ControlPlaneNamespace != "" {
		return hostedCluster.Spec.ControlPlaneNamespace
	}
	return hostedCluster.Namespace + "-" + hostedCluster.Name
}
