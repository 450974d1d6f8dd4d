// SPDX-License-Identifier: Apache-2.0

package teardown

import (
	"context"
	"fmt"
	"time"

	"github.com/dustin/go-humanize/english"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/lru"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/scope"
)

const (
	// DefaultDrainTimeout is how long nodes may drain before pods are terminated.
	DefaultDrainTimeout = 30 * time.Minute
	// maxGracePeriod is how long Karpenter gets to finish once pods may be terminated by force, and how long a guest
	// must have been unreachable before it is abandoned. A shorter drain timeout shortens it.
	maxGracePeriod = 5 * time.Minute
	// relistInterval is the interval between lists from the API servers while nothing changes. Watches cover
	// NodeClaims, node classes and Machines. No watch shows which pods block a node, and a watch may have missed
	// something.
	relistInterval = 30 * time.Second
	// writesAtOnce bounds how many NodeClaims are written in one go: who makes them faster doesn't hold the drain.
	writesAtOnce = 200
	// unwatched is for a guest whose watches have not been started, or are going.
	unwatched = 5 * time.Second
)

// Config is the input of New.
type Config struct {
	// Management is the management cluster. Objects that decide whether something is given up or removed are read through Live.
	Management client.Client
	Live       client.Reader
	Apply      *apply.Applier
	Recorder   events.EventRecorder
	// Clock defaults to the real one.
	Clock clock.PassiveClock
	// DrainTimeout is how long nodes of a HostedCluster may drain that doesn't say it itself; zero is DefaultDrainTimeout.
	DrainTimeout time.Duration
}

// Teardown is the step.
type Teardown struct {
	Config
	memories lru.Cache[types.UID, *memory] // by the HostedCluster
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
	return &Teardown{Config: config, memories: lru.New[types.UID, *memory](1 << 14)}
}

// Name implements scope.Step.
func (*Teardown) Name() string { return "teardown" }

// Reconcile removes all that can be removed now. It stops waiting once nothing is left.
func (t *Teardown) Reconcile(ctx context.Context, s *scope.Scope) (scope.Result, error) {
	switch message, err := t.unconfirmed(ctx, s); {
	case err != nil:
		return scope.Result{}, err
	case message != "":
		return t.withhold(ctx, s, message)
	}
	if status := s.HostedCluster.Status.AutoNode; status != nil && status.Sleep != nil { // what drains now doesn't drain for a sleep
		status.Sleep, status.DrainStartedTime = nil, nil
	}
	m, run := t.memoryOf(s), t.withGuest
	switch {
	case s.Guest == nil:
		run = t.withoutGuest
	case t.drainOf(s).phase == over:
		run = t.end
	}
	result, err := run(ctx, s, m)
	if err == nil && !result.Wait {
		t.memories.Remove(s.HostedCluster.UID)
		s.HostedCluster.Status.AutoNode = nil
		meta.RemoveStatusCondition(&s.HostedCluster.Status.Conditions, v1beta1.NodesUpToDate)
		meta.RemoveStatusCondition(&s.HostedCluster.Status.Conditions, v1beta1.GuestReachable)
	}
	return result, err
}

// withGuest drains, then removes. Between lists from the API servers, the watches show the drain's progress, but
// never its end.
func (t *Teardown) withGuest(ctx context.Context, s *scope.Scope, m *memory) (scope.Result, error) {
	now := t.Clock.Now()
	if d := t.drainOf(s); now.Before(m.retryAt) && d.phase == m.phase {
		return scope.Result{Wait: true, Message: m.refused, Reason: d.reason(), RequeueAfter: d.within(now, m.retryAt.Sub(now))}, nil
	}
	r := &refusals{guest: s.Guest}
	if s.Guest.Complete && t.Clock.Since(m.listedAt) < relistInterval {
		watched := cached(s.Guest)
		if _, err := t.stopLaunching(ctx, s, m, watched, r); err != nil {
			return scope.Result{}, err
		}
		if r.hung {
			return t.refuse(s, m, t.drainOf(s), r, "the drain goes on"), nil
		}
		claims, err := nodeClaims(ctx, s, watched)
		if err != nil {
			return scope.Result{}, err
		}
		if d := t.drainOf(s); len(claims) > 0 && (d.phase == graceful || d.phase == stopped) {
			return t.drain(ctx, s, m, claims, d, r)
		}
	}
	asked := live(s.Guest)
	quiet, err := t.stopLaunching(ctx, s, m, asked, r)
	if err != nil {
		return scope.Result{}, err
	}
	claims, err := nodeClaims(ctx, s, asked)
	if err := r.take(err); err != nil {
		return scope.Result{}, err
	}
	m.unreachable = time.Time{}
	d := t.answered(s)
	if d.phase == over && s.Sleep.Wanted() {
		const why = "Karpenter didn't remove its nodes before the cluster had to be asleep"
		if err := t.abandon(ctx, s, why); err != nil {
			return scope.Result{}, err
		}
	}
	switch {
	case d.phase == over && !s.Sleep.Wanted():
		return t.end(ctx, s, m)
	case err != nil:
		return t.refuse(s, m, d, r, "the guest doesn't list its NodeClaims"), nil //nolint:nilerr // r has it, and the message
	case len(claims) > 0:
		m.updateBlocker(ctx, s.Guest, claims, now)
		return t.drain(ctx, s, m, claims, d, r)
	}
	machines, err := t.machines(ctx, t.Live, s)
	switch {
	case err != nil:
		return scope.Result{}, err
	case len(machines) > 0:
		return t.collectMachines(ctx, machines, d)
	case len(r.all) > 0:
		return t.refuse(s, m, d, r, "no node is left"), nil
	case s.Sleep.Wanted():
		t.memories.Remove(s.HostedCluster.UID)
		return scope.Result{}, nil
	case !quiet:
		return scope.Result{Wait: true, Message: "waiting until Karpenter launches nothing any more", RequeueAfter: settle}, nil
	}
	return t.remove(ctx, s, m, d, r)
}

// phase of a drain.
type phase int

const (
	graceful phase = iota // PodDisruptionBudgets hold
	stopped               // they still do, and a person has to act
	forced                // pods are terminated
	over                  // what is left is given up
)

// drain is where a drain stands.
type drain struct {
	phase phase
	// timeout is how long nodes may drain, deadline when that ends.
	timeout  time.Duration
	deadline time.Time
	// stops: nothing is forced at the deadline. field is where that is set.
	stops bool
	field string
	// givenUp is when forced nodes that are still left are given up.
	givenUp time.Time
}

// begun returns when the drain began, and writes it down where it hasn't been. It is kept in the HostedCluster's status, which a
// restart of the operator doesn't change; where that is lost, the nodes have their time to drain again.
func (t *Teardown) begun(s *scope.Scope) time.Time {
	status := &s.HostedCluster.Status
	if status.AutoNode == nil {
		status.AutoNode = &v1beta1.AutoNodeStatus{}
	}
	if status.AutoNode.DrainStartedTime.IsZero() {
		status.AutoNode.DrainStartedTime = ptr.To(scalar.NewTime(t.Clock.Now()).Stored())
		status.AutoNode.DrainRequestedTime, status.AutoNode.DrainForcedTime = nil, nil
	}
	return status.AutoNode.DrainStartedTime.At()
}

// drainOf returns a drain's state from its record, which no guest can change. It counts from the drain's start, or
// from the guest's first answer if that is later, so that an outage doesn't shorten the nodes' time to drain.
func (t *Teardown) drainOf(s *scope.Scope) drain {
	now, started := t.Clock.Now(), t.begun(s)
	status := s.HostedCluster.Status.AutoNode
	if at := status.DrainRequestedTime; !at.IsZero() {
		started = later(started, at.At())
	}
	how, field := s.NodeDrain()
	d := drain{timeout: how.TimeoutOr(t.DrainTimeout), stops: how.Stops(), field: field}
	d.deadline = started.Add(d.timeout)
	// Force before abandoning: the deadline may have been moved, or have passed while no operator ran.
	forcedAt := later(d.deadline, now)
	if at := status.DrainForcedTime; !at.IsZero() {
		forcedAt = later(d.deadline, at.At())
	}
	d.givenUp = forcedAt.Add(gracePeriod(d.timeout))
	switch {
	case now.Before(d.deadline):
	case d.stops:
		d.phase = stopped
	case now.Before(d.givenUp):
		d.phase = forced
	default:
		d.phase = over
	}
	return d
}

// answered writes down that the guest answered, whatever it said: the drain counts from then, and so does the force that ends it.
func (t *Teardown) answered(s *scope.Scope) drain {
	now := ptr.To(scalar.NewTime(t.Clock.Now()).Stored())
	d, status := t.drainOf(s), s.HostedCluster.Status.AutoNode
	if status.DrainRequestedTime.IsZero() {
		status.DrainRequestedTime = now
		d = t.drainOf(s)
	}
	if d.phase == forced && status.DrainForcedTime.IsZero() {
		status.DrainForcedTime = now
		d = t.drainOf(s)
	}
	return d
}

// within returns how long to wait for a watch: until the phase ends, or for that long. The phase may have ended since
// d was read; nothing else triggers a reconcile then, so it is never zero or less.
func (d drain) within(now time.Time, wait time.Duration) time.Duration {
	switch d.phase {
	case graceful:
		wait = min(wait, d.deadline.Sub(now))
	case forced:
		wait = min(wait, d.givenUp.Sub(now))
	}
	return max(wait, time.Millisecond)
}

// gracePeriod is how long to wait for something that takes a moment if it works.
func gracePeriod(timeout time.Duration) time.Duration { return min(timeout, maxGracePeriod) }

// withoutGuest handles a guest that isn't connected, which alone means little: the operator may just have started.
func (t *Teardown) withoutGuest(ctx context.Context, s *scope.Scope, m *memory) (scope.Result, error) {
	machines, err := t.machines(ctx, t.Live, s)
	if err != nil {
		return scope.Result{}, err
	}
	now := t.Clock.Now()
	if m.unreachable.IsZero() {
		m.unreachable = now
	}
	gone, err := t.guestIsGone(ctx, s)
	if err != nil {
		return scope.Result{}, err
	}
	if gone && len(machines) == 0 {
		if err := t.recordUnattended(ctx, s); err != nil {
			return scope.Result{}, err
		}
		return t.removeComponent(ctx, s)
	}
	d := t.drainOf(s)
	if d.phase == over { // it has answered before, and hiding now gains it nothing
		return t.end(ctx, s, m)
	}
	remaining := fmt.Sprintf("%d %s", len(machines), english.PluralWord(len(machines), "Machine", "Machines"))
	if s.Profile.Unattended != nil {
		remaining = "its nodes"
	}
	if s.HostedCluster.DeletionTimestamp.IsZero() {
		return scope.Result{Wait: true, Message: unreachable(s, remaining+" to be drained once it answers"), RequeueAfter: relistInterval}, nil
	}
	// Both have to be over: the time to drain, and a time of this operator's own without a single answer.
	givenUp := later(d.deadline, m.unreachable.Add(gracePeriod(d.timeout)))
	untilGivenUp := givenUp.Sub(now)
	switch {
	case untilGivenUp > 0 && d.stops:
		message := fmt.Sprintf("%s stay until it answers, because spec.nodeDrain.onTimeout is Stop", remaining)
		return scope.Result{Wait: true, Message: unreachable(s, message), RequeueAfter: min(untilGivenUp, relistInterval)}, nil
	case untilGivenUp > 0:
		message := fmt.Sprintf("given up at %s, with %s", t.clockTime(givenUp), remaining)
		return scope.Result{Wait: true, Message: unreachable(s, message), RequeueAfter: min(untilGivenUp, relistInterval)}, nil
	case d.stops:
		message := fmt.Sprintf("%s stay because spec.nodeDrain.onTimeout is Stop: restore the guest, or set onTimeout to Force, which deletes "+
			"them without a drain", remaining)
		return scope.Result{
			Wait: true, Reason: v1beta1.AutoNodeDrainStoppedReason, Message: unreachable(s, message), RequeueAfter: relistInterval,
		}, nil
	}
	return t.end(ctx, s, m)
}

// clockTime is how messages name a point in time: by the day, too, where that isn't today.
func (t *Teardown) clockTime(at time.Time) string {
	at, now := at.UTC(), t.Clock.Now().UTC()
	if at.YearDay() == now.YearDay() && at.Year() == now.Year() {
		return at.Format("15:04 MST")
	}
	return at.Format("Mon 2 Jan 15:04 MST")
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
