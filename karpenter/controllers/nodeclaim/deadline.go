// SPDX-License-Identifier: Apache-2.0

package nodeclaim

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/core/reconciler"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

const (
	// prolongAfter leaves Karpenter's caches time to see the extension before its own timeout.
	prolongAfter = 10 * time.Minute
	// requeueOnLag is the requeue interval while a cache lags behind the management cluster.
	requeueOnLag = 10 * time.Second
)

// deadline makes Karpenter wait for a machine as long as its node class declares. Karpenter's own timeout is the same for
// all NodeClaims, and counts from a time in the NodeClaim's status. Moving it forward extends the NodeClaim's life.
// Moving it back makes Karpenter delete the NodeClaim by its own rules and count the failure for the NodePool's
// health. It takes one write, and none for a machine that joins within ten minutes. After a longer outage,
// reconciler.Extend keeps Karpenter from acting first.
type deadline struct {
	Config
	// suspended is when the management cluster last failed to answer. Deadlines restart from then: its controllers
	// made no progress during the outage.
	suspended atomic.Pointer[time.Time]
}

// stage is the launch stage of a machine and its deadline.
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
	s := d.stage(ctx, nodeClaim, nodeClass, m)
	now := d.Clock.Now()
	if registered.Reason == s.reason {
		// Already passed: Karpenter is about to delete it.
		return outcome{done: true}, nil
	}
	if !now.Before(s.end) && !paused(m) {
		return d.pass(ctx, nodeClaim, m, s)
	}
	given := registered.LastTransitionTime.Add(reconciler.RegistrationTimeout)
	if !paused(m) && s.end.Before(given) {
		return outcome{requeueAfter: s.end.Sub(now)}, nil
	}
	prolong := registered.LastTransitionTime.Add(prolongAfter)
	if now.Before(prolong) {
		requeueAfter := prolong.Sub(now)
		if !paused(m) {
			requeueAfter = min(requeueAfter, s.end.Sub(now))
		}
		return outcome{requeueAfter: requeueAfter}, nil
	}
	log.FromContext(ctx).V(1).Info("extending Karpenter's timeout", "stage", s.reason, "deadline", s.end)
	_, err = reconciler.Restart(ctx, d.Guest, nodeClaim, now, registered.Reason, registered.Message)
	return outcome{requeueAfter: prolongAfter}, err
}

// suspend keeps Karpenter from deleting a NodeClaim whose Machine can't be read: it may still join after the outage.
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
	_, err := reconciler.Restart(ctx, d.Guest, nodeClaim, now, registered.Reason, registered.Message)
	return err
}

// stage returns a machine's stage: at first it has no provider ID, then no node. Time during which it is paused or
// the management cluster is unreachable doesn't count. Only bootstrap data and a provider ID count as progress and
// restart the clock. Other conditions and reasons don't: a provider that retries forever keeps changing them.
func (d *deadline) stage(
	ctx context.Context, nodeClaim *karpv1.NodeClaim, nodeClass *v1alpha1.ClusterAPINodeClass, m *clusterv1.Machine,
) stage {
	limits := nodeClass.Spec.Deadlines
	s := stage{reason: LaunchTimeoutReason, missing: "provider ID", limit: limits.LaunchOrDefault()}
	start := m.CreationTimestamp.Time
	ready := machine.Condition(m, clusterv1.MachineBootstrapConfigReadyCondition)
	if ready.Status == metav1.ConditionTrue && start.Before(ready.LastTransitionTime.Time) {
		start = ready.LastTransitionTime.Time
		if latest := m.CreationTimestamp.Add(s.limit); latest.Before(start) {
			// The condition has been True before.
			start = latest
		}
	}
	if d.provisioned(ctx, m) {
		s = stage{reason: RegistrationTimeoutReason, missing: "registered node", limit: limits.RegistrationOrDefault()}
		start = d.Clock.Now()
		if provisioned := nodeClaim.StatusConditions().Get(ConditionMachineProvisioned); provisioned.IsTrue() {
			start = provisioned.LastTransitionTime.Time
		}
	}
	s.end = d.resumed(m, start).Add(s.limit)
	return s
}

// resumed returns a time, or a later one until which the machine was paused or the management cluster unreachable.
func (d *deadline) resumed(m *clusterv1.Machine, start time.Time) time.Time {
	resumed := machine.Condition(m, clusterv1.PausedCondition)
	if resumed.Status == metav1.ConditionFalse && start.Before(resumed.LastTransitionTime.Time) {
		start = resumed.LastTransitionTime.Time
	}
	if suspended := d.suspended.Load(); suspended != nil && start.Before(*suspended) {
		start = *suspended
	}
	return start
}

func paused(m *clusterv1.Machine) bool {
	return machine.Condition(m, clusterv1.PausedCondition).Status == metav1.ConditionTrue
}

// live returns a Machine as the API server has it: a lagging or disconnected cache may miss its progress. It returns nil if the Machine has
// made progress, is paused or is gone, and an error if that is unknown. In both cases it must not be timed out.
func (d *deadline) live(ctx context.Context, cached *clusterv1.Machine) (*clusterv1.Machine, error) {
	m := &clusterv1.Machine{}
	err := d.Machines.Live.Get(ctx, client.ObjectKeyFromObject(cached), m)
	switch {
	case apierrors.IsNotFound(err), err == nil && (m.UID != cached.UID || m.Spec.ProviderID != cached.Spec.ProviderID || paused(m)):
		return nil, nil //nolint:nilnil // see above
	case err != nil:
		return nil, fmt.Errorf("reading Machine %s before timing it out: %w", cached.Name, err)
	}
	return m, nil
}

// pass times out a stage.
func (d *deadline) pass(ctx context.Context, nodeClaim *karpv1.NodeClaim, cached *clusterv1.Machine, s stage) (outcome, error) {
	m, err := d.live(ctx, cached)
	if err != nil || m == nil {
		return outcome{requeueAfter: requeueOnLag}, err
	}
	node := &corev1.Node{}
	for _, name := range machine.NodeNames(m) {
		if err := d.get(ctx, name, node); err != nil {
			return outcome{}, fmt.Errorf("reading node %s: %w", name, err)
		}
		if node.UID != "" {
			break
		}
	}
	key, last := offeringOf(m), d.awaited(ctx, m)
	notReady, err := d.notReady(ctx)
	if err != nil {
		return outcome{}, err
	}
	var until time.Time
	// A cause that keeps every machine from coming is no fault of the offering.
	blamed := s.reason == LaunchTimeoutReason && last.Type != clusterv1.MachineBootstrapConfigReadyCondition && notReady == ""
	if blamed {
		// Mark it first: the replacement must not get the same offering.
		until = d.Unavailable.Mark(key, s.reason)
	}
	message := fmt.Sprintf("no %s within %s (%s); Machine %s/%s reports %s: %s", s.missing, s.limit, key.Description(), m.Namespace, m.Name,
		last.Type, detail(last))
	if notReady != "" {
		message += "; " + notReady
	}
	if node.UID != "" {
		message += fmt.Sprintf("; its Node has joined with the provider ID %q, the Machine has %q", node.Spec.ProviderID,
			d.Machines.InstanceID(ctx, m))
	}
	expired := d.Clock.Now().Add(-reconciler.RegistrationTimeout)
	if moved, err := reconciler.Restart(ctx, d.Guest, nodeClaim, expired, s.reason, message); err != nil || !moved {
		return outcome{done: true}, err
	}
	if !blamed && notReady == "" {
		until = d.Unavailable.CountFailure(key, s.reason)
	}
	d.Unavailable.Explain(key, detail(last))
	logger(ctx, key).Info("machine took too long", "reason", s.reason, "limit", s.limit, "condition", last.Type, "message", detail(last),
		"unavailableUntil", until)
	d.Recorder.Publish(warning(nodeClaim, s.reason, "%s%s", message, offering.RetryNotice(until)))
	return outcome{done: true}, nil
}

// Deadlines configures Karpenter core's NodeClaim lifecycle controller to leave the deadlines to this one.
func Deadlines(config Config) reconciler.DeadlinesConfig {
	return reconciler.DeadlinesConfig{
		HasMachine: func(ctx context.Context, nodeClaim *karpv1.NodeClaim) bool {
			_, err := config.Machines.ForNodeClaim(ctx, nodeClaim.UID)
			return !errors.Is(err, machine.ErrNotFound)
		},
		Passed:    func(reason string) bool { return reason == LaunchTimeoutReason || reason == RegistrationTimeoutReason },
		Suspended: config.Suspended,
		Clock:     config.Clock,
	}
}

// lastCondition returns the first condition that the machine is waiting for: bootstrap data, infrastructure, node.
func lastCondition(m *clusterv1.Machine) metav1.Condition {
	for _, kind := range []string{
		clusterv1.MachineBootstrapConfigReadyCondition, clusterv1.MachineInfrastructureReadyCondition, clusterv1.MachineNodeHealthyCondition,
	} {
		if condition := machine.Condition(m, kind); condition.Type != "" && condition.Status != metav1.ConditionTrue {
			return condition
		}
	}
	return metav1.Condition{Type: clusterv1.MachineReadyCondition, Reason: "nothing"}
}

// reasonsOnly is the message of a Machine whose infrastructure machine has conditions without messages, or none yet.
var reasonsOnly = regexp.MustCompile(`^(\s*\* \w+: *\w*\s*)*$|not yet reported`)

// awaited returns the condition that a machine is waiting for. A reason that only a condition of the infrastructure machine has, which the
// Machine doesn't repeat, comes first. Without any reason, the message names where to look.
func (c Config) awaited(ctx context.Context, m *clusterv1.Machine) metav1.Condition {
	last := lastCondition(m)
	if last.Type != clusterv1.MachineInfrastructureReadyCondition || !reasonsOnly.MatchString(last.Message) {
		return last
	}
	conditions := formerConditions(m)
	ref := m.Spec.InfrastructureRef
	if c.Infrastructure != nil {
		if object, err := c.Infrastructure.Get(ctx, ref.GroupKind(), ref.Name); err == nil {
			conditions = append(conditionsOfInfrastructure(object), conditions...)
		}
	}
	for _, condition := range conditions {
		if condition.Status == metav1.ConditionFalse && !reasonsOnly.MatchString(condition.Message) {
			last.Reason, last.Message = condition.Reason, condition.Message
			return last
		}
	}
	said := strings.TrimSpace(last.Message)
	if said != "" {
		said += "; "
	}
	last.Message = said + fmt.Sprintf("the infrastructure provider gives no reason; check the conditions and events of %s %s/%s and "+
		"of the objects that it creates, and the provider's log",
		ref.Kind, m.Namespace, ref.Name)
	return last
}
