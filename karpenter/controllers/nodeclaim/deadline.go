// SPDX-License-Identifier: Apache-2.0

package nodeclaim

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/core/deadlines"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

const (
	// prolongAfter leaves Karpenter's caches enough time to hear of it before it would give up.
	prolongAfter = 10 * time.Minute
	// lookAgain is for a cache that lags behind what the management cluster says.
	lookAgain = 10 * time.Second
)

// deadline makes Karpenter wait for a machine exactly as long as its node class says. Karpenter's own timeout is the same for
// all, and counts from a time that it keeps in the NodeClaim's status: moved on, the NodeClaim lives longer; moved back, Karpenter
// gives it up at once, by its own rules, and counts it for the NodePool's health. One write moves it, and none is needed for a
// machine that comes within ten minutes. Where nobody could write for longer than that, deadlines.Extend keeps Karpenter from being the first.
type deadline struct {
	Config
	// suspended is when the management cluster last didn't answer. Deadlines count anew from then: its controllers had no chance.
	suspended atomic.Pointer[time.Time]
}

// stage is what a machine is in, and until when it may be.
type stage struct {
	reason, missing string
	limit           time.Duration
	end             time.Time
}

func (d *deadline) reconcile(ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine) (outcome, error) {
	registered := nodeClaim.StatusConditions().Get(karpv1.ConditionTypeRegistered)
	if registered == nil || registered.IsTrue() {
		return outcome{}, nil
	}
	nodeClass, err := d.nodeClass(ctx, nodeClaim)
	if err != nil {
		return outcome{}, err
	}
	s := d.stage(nodeClaim, nodeClass, m)
	now := d.Clock.Now()
	if registered.Reason == s.reason {
		// Passed before: Karpenter is about to delete it.
		return outcome{done: true}, nil
	}
	if !now.Before(s.end) && !paused(m) {
		return d.pass(ctx, nodeClaim, m, s)
	}
	given := registered.LastTransitionTime.Add(deadlines.RegistrationTimeout)
	if !paused(m) && s.end.Before(given) {
		return outcome{again: s.end.Sub(now)}, nil
	}
	prolong := registered.LastTransitionTime.Add(prolongAfter)
	if now.Before(prolong) {
		again := prolong.Sub(now)
		if !paused(m) {
			again = min(again, s.end.Sub(now))
		}
		return outcome{again: again}, nil
	}
	log.FromContext(ctx).V(1).Info("prolonging Karpenter's timeout", "stage", s.reason, "deadline", s.end)
	_, err = deadlines.Restart(ctx, d.Guest, nodeClaim, now, registered.Reason, registered.Message)
	return outcome{again: prolongAfter}, err
}

// suspend keeps Karpenter from giving up a machine that nobody can see: it may be there when the management cluster is back.
func (d *deadline) suspend(ctx context.Context, nodeClaim *karpv1.NodeClaim) error {
	registered := nodeClaim.StatusConditions().Get(karpv1.ConditionTypeRegistered)
	launched := nodeClaim.StatusConditions().Get(karpv1.ConditionTypeLaunched)
	now := d.Clock.Now()
	d.suspended.Store(&now)
	if nodeClaim.DeletionTimestamp != nil || !launched.IsTrue() || registered == nil || registered.IsTrue() ||
		registered.Reason == LaunchTimeoutReason || registered.Reason == RegistrationTimeoutReason ||
		now.Before(registered.LastTransitionTime.Add(prolongAfter)) {
		return nil
	}
	_, err := deadlines.Restart(ctx, d.Guest, nodeClaim, now, registered.Reason, registered.Message)
	return err
}

// stage of a machine: first it has no provider ID, then no node. The time while Cluster API leaves it alone, or isn't there,
// doesn't count. What a machine reaches once is progress: bootstrap data and a provider ID, after each of which the clock starts anew. Other conditions
// and their reasons aren't: a provider that tries forever changes them forever.
func (d *deadline) stage(nodeClaim *karpv1.NodeClaim, nodeClass *v1alpha1.ClusterAPINodeClass, m *clusterv1.Machine) stage {
	limits := nodeClass.Spec.Deadlines
	s := stage{reason: LaunchTimeoutReason, missing: "machine", limit: limits.LaunchOrDefault()}
	start := m.CreationTimestamp.Time
	if ready := machine.Condition(m, clusterv1.MachineBootstrapConfigReadyCondition); ready.Status == metav1.ConditionTrue && start.Before(ready.LastTransitionTime.Time) {
		start = ready.LastTransitionTime.Time
		if latest := m.CreationTimestamp.Add(s.limit); latest.Before(start) {
			// It isn't the first time that it is ready.
			start = latest
		}
	}
	if m.Spec.ProviderID != "" {
		s = stage{reason: RegistrationTimeoutReason, missing: "node", limit: limits.RegistrationOrDefault()}
		start = d.Clock.Now()
		if provisioned := nodeClaim.StatusConditions().Get(ConditionMachineProvisioned); provisioned.IsTrue() {
			start = provisioned.LastTransitionTime.Time
		}
	}
	if resumed := machine.Condition(m, clusterv1.PausedCondition); resumed.Status == metav1.ConditionFalse && start.Before(resumed.LastTransitionTime.Time) {
		start = resumed.LastTransitionTime.Time
	}
	if suspended := d.suspended.Load(); suspended != nil && start.Before(*suspended) {
		start = *suspended
	}
	s.end = start.Add(s.limit)
	return s
}

func paused(m *clusterv1.Machine) bool {
	return machine.Condition(m, clusterv1.PausedCondition).Status == metav1.ConditionTrue
}

// pass ends a stage that took too long. Before that the management cluster itself is asked, because a cache that lags, or that has
// lost its connection, doesn't show what a machine has achieved.
func (d *deadline) pass(ctx context.Context, nodeClaim *karpv1.NodeClaim, cached *clusterv1.Machine, s stage) (outcome, error) {
	m := &clusterv1.Machine{}
	err := d.Machines.Live.Get(ctx, client.ObjectKeyFromObject(cached), m)
	switch {
	case apierrors.IsNotFound(err), err == nil && m.UID != cached.UID, err == nil && m.Spec.ProviderID != cached.Spec.ProviderID, err == nil && paused(m):
		return outcome{again: lookAgain}, nil
	case err != nil:
		// Nobody knows how far it is: it lives on.
		return outcome{}, fmt.Errorf("asking for Machine %s before giving it up: %w", cached.Name, err)
	}
	key, last := offeringOf(m), lastCondition(m)
	var until time.Time
	blamed := s.reason == LaunchTimeoutReason && last.Type != clusterv1.MachineBootstrapConfigReadyCondition
	if blamed {
		// Marked first: the pods must not be given the same offering again.
		until = d.Unavailable.Mark(key, s.reason)
	}
	message := fmt.Sprintf("no %s within %s (%s); Machine %s/%s says %s: %s", s.missing, s.limit, described(key), m.Namespace, m.Name, last.Type, detail(last))
	if moved, err := deadlines.Restart(ctx, d.Guest, nodeClaim, d.Clock.Now().Add(-deadlines.RegistrationTimeout), s.reason, message); err != nil || !moved {
		return outcome{done: true}, err
	}
	if !blamed {
		until = d.Unavailable.Strike(key, s.reason)
	}
	log.FromContext(ctx).Info("machine took too long", "instanceType", key.InstanceType, "zone", key.Zone, "capacityType", key.CapacityType,
		"reason", s.reason, "limit", s.limit, "condition", last.Type, "message", detail(last), "unavailableUntil", until)
	d.Recorder.Publish(warning(nodeClaim, s.reason, "%s%s", message, rests(until)))
	return outcome{done: true}, nil
}

// Deadlines is what Karpenter core's own controller of NodeClaims has to know to leave the deadlines to this one.
func Deadlines(config Config) deadlines.Config {
	return deadlines.Config{
		HasMachine: func(ctx context.Context, nodeClaim *karpv1.NodeClaim) bool {
			_, err := config.Machines.ForNodeClaim(ctx, nodeClaim.UID)
			return !errors.Is(err, machine.ErrNotFound)
		},
		Passed:    func(reason string) bool { return reason == LaunchTimeoutReason || reason == RegistrationTimeoutReason },
		Suspended: config.Suspended,
		Clock:     config.Clock,
	}
}

// lastCondition is what a machine waits for, in the order in which one thing needs the other.
func lastCondition(m *clusterv1.Machine) metav1.Condition {
	for _, kind := range []string{clusterv1.MachineBootstrapConfigReadyCondition, clusterv1.MachineInfrastructureReadyCondition, clusterv1.MachineNodeHealthyCondition} {
		if condition := machine.Condition(m, kind); condition.Type != "" && condition.Status != metav1.ConditionTrue {
			return condition
		}
	}
	return metav1.Condition{Type: clusterv1.MachineReadyCondition, Reason: "nothing"}
}
