// SPDX-License-Identifier: Apache-2.0

package teardown

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/scope"
)

const (
	// DefaultDrainTimeout is how long nodes may drain before a deleted HostedCluster stops waiting.
	DefaultDrainTimeout = 30 * time.Minute
	// maxPatience is how long Karpenter gets to finish once pods may be terminated by force, and how long a guest must have been
	// unreachable to be given up. A shorter drain timeout shortens it.
	maxPatience = 5 * time.Minute
	// recheck is how often to look at what no watch tells: the pods that hold a node, and Machines.
	recheck = 5 * time.Second
	// slowRecheck is for what changes seldom, or what a watch tells too.
	slowRecheck = 30 * time.Second
	// timeOfDay is how messages name a deadline.
	timeOfDay = "15:04 MST"
)

// Config is what New needs.
type Config struct {
	// Management is the management cluster. Machines and the ConfigMap are read through Live, so that no cache of them is kept.
	Management client.Client
	Live       client.Reader
	Apply      *apply.Applier
	Recorder   events.EventRecorder
	// Access is the step that keeps Karpenter's token valid, which a long drain needs too; nil where tests have no Karpenter.
	Access scope.Step
	// Clock tells the time; nil is the real one.
	Clock clock.PassiveClock
	// DrainTimeout is how long nodes may drain after a HostedCluster was deleted; zero is DefaultDrainTimeout.
	DrainTimeout time.Duration
}

// Teardown is the step.
type Teardown struct {
	Config
	// largest remembers how many nodes there were to drain, for the message: of int by the HostedCluster's UID.
	largest *lru.Cache
	// unreachable remembers since when a guest hasn't been connected: of time.Time by the HostedCluster's UID. It isn't
	// persisted on purpose: a new leader finds out by itself.
	unreachable *lru.Cache
}

var _ scope.Step = (*Teardown)(nil)

// New returns the step.
func New(config Config) *Teardown {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	if config.DrainTimeout == 0 {
		config.DrainTimeout = DefaultDrainTimeout
	}
	return &Teardown{Config: config, unreachable: lru.New(1 << 14), largest: lru.New(1 << 14)}
}

// Name implements scope.Step.
func (*Teardown) Name() string { return "teardown" }

// Reconcile takes down what there is, as far as it can be done now. It doesn't wait any more when nothing is left.
func (t *Teardown) Reconcile(ctx context.Context, s *scope.Scope) (scope.Result, error) {
	machines, err := t.machines(ctx, s)
	if err != nil {
		return scope.Result{}, err
	}
	var result scope.Result
	if s.Guest == nil {
		result, err = t.withoutGuest(ctx, s, machines)
	} else {
		t.unreachable.Remove(s.HostedCluster.UID)
		result, err = t.withGuest(ctx, s, machines)
	}
	if err == nil && !result.Wait {
		t.unreachable.Remove(s.HostedCluster.UID)
		t.largest.Remove(s.HostedCluster.UID)
		s.HostedCluster.Status.AutoNode = nil
		meta.RemoveStatusCondition(&s.HostedCluster.Status.Conditions, v1beta1.NodesUpToDate)
		meta.RemoveStatusCondition(&s.HostedCluster.Status.Conditions, v1beta1.GuestReachable)
	}
	return result, err
}

func (t *Teardown) withGuest(ctx context.Context, s *scope.Scope, machines []clusterv1.Machine) (scope.Result, error) {
	if err := markDraining(ctx, s); err != nil {
		return scope.Result{}, err
	}
	claims, err := nodeClaims(ctx, s)
	if err != nil {
		return scope.Result{}, err
	}
	d := t.drainOf(s, claims)
	switch {
	case d.phase == over && len(claims)+len(machines) > 0:
		if err := t.giveUp(ctx, s, machines, claims); err != nil {
			return scope.Result{}, err
		}
	case len(claims) > 0:
		return t.drain(ctx, s, claims, d)
	case len(machines) > 0:
		return t.reap(ctx, machines)
	}
	return t.remove(ctx, s, d)
}

// phase of a drain. Only a deleted HostedCluster leaves the first.
type phase int

const (
	patient phase = iota // PodDisruptionBudgets hold
	forced               // pods are terminated
	over                 // what is left is given up
)

// drain is where a drain stands. Its times are zero while AutoNode is only turned off.
type drain struct {
	phase             phase
	forcedAt, givenUp time.Time
}

// drainOf counts from what a restart of the operator doesn't change: when the HostedCluster was deleted, or when the first of its
// NodeClaims was if that came later. So an operator that was away meanwhile doesn't take the nodes' time to drain from them.
func (t *Teardown) drainOf(s *scope.Scope, claims []karpv1.NodeClaim) drain {
	if s.HostedCluster.DeletionTimestamp.IsZero() {
		return drain{}
	}
	now := t.Clock.Now()
	started := s.HostedCluster.DeletionTimestamp.Time
	if len(claims) > 0 {
		first := now
		for i := range claims {
			if deleted := claims[i].DeletionTimestamp; !deleted.IsZero() && deleted.Time.Before(first) {
				first = deleted.Time
			}
		}
		started = later(started, first)
	}
	d := drain{forcedAt: started.Add(t.DrainTimeout)}
	d.givenUp = d.forcedAt.Add(t.patience())
	switch {
	case now.Before(d.forcedAt):
	case now.Before(d.givenUp):
		d.phase = forced
	default:
		d.phase = over
	}
	return d
}

func (t *Teardown) patience() time.Duration { return min(t.DrainTimeout, maxPatience) }

// withoutGuest decides what to do about a guest that isn't connected, which by itself says little: the operator may just have started.
func (t *Teardown) withoutGuest(ctx context.Context, s *scope.Scope, machines []clusterv1.Machine) (scope.Result, error) {
	now := t.Clock.Now()
	since := now
	if known, ok := t.unreachable.Get(s.HostedCluster.UID); ok {
		since, _ = known.(time.Time)
	} else {
		t.unreachable.Add(s.HostedCluster.UID, now)
	}
	gone, err := t.guestIsGone(ctx, s)
	if err != nil {
		return scope.Result{}, err
	}
	if gone && len(machines) == 0 {
		return t.removeComponent(ctx, s)
	}
	held := fmt.Sprintf("%d %s", len(machines), plural(len(machines), "Machine", "Machines"))
	deleted := s.HostedCluster.DeletionTimestamp
	if deleted.IsZero() {
		return scope.Result{Wait: true, Message: unreachable(s, held+" to be drained once it answers"), RequeueAfter: slowRecheck}, nil
	}
	// Both have to be over: the time to drain, and a time of this operator's own without a single answer.
	if givenUp := later(deleted.Add(t.DrainTimeout), since.Add(t.patience())); now.Before(givenUp) {
		return scope.Result{
			Wait:         true,
			Message:      unreachable(s, fmt.Sprintf("given up at %s, with %s", givenUp.UTC().Format(timeOfDay), held)),
			RequeueAfter: min(givenUp.Sub(now), slowRecheck),
		}, nil
	}
	if err := t.giveUp(ctx, s, machines, nil); err != nil {
		return scope.Result{}, err
	}
	return t.removeComponent(ctx, s)
}

func unreachable(s *scope.Scope, then string) string {
	message := "the guest can't be reached"
	if c := meta.FindStatusCondition(s.HostedCluster.Status.Conditions, v1beta1.GuestReachable); c != nil && c.Message != "" {
		message += " (" + c.Message + ")"
	}
	return message + "; " + then
}
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
