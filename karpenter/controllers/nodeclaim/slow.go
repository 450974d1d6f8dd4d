// SPDX-License-Identifier: Apache-2.0

package nodeclaim

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/awslabs/operatorpkg/status"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// slowInterval is the requeue interval of a slow launch that stays. There may be many, and each check compares all offerings.
const slowInterval = time.Minute

// slow gives up a launch whose machine takes much longer than machines of its template usually do, if another offering can be launched.
// An infrastructure provider may report a failed task as late as at its next sync. Without another offering the NodeClaim reports the
// delay.
//
// Launches are given up one at a time, because another offering doesn't help if the whole provider is slow. The next one follows when a
// Machine that was created later has a provider ID, or after maxSlow.
type slow struct {
	Config
	times    *launchTimes
	deadline *deadline

	mu sync.Mutex
	// last is when a launch was given up; zero if the next one may be.
	last time.Time
}

func (s *slow) reconcile(ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine) (outcome, error) {
	if s.provisioned(ctx, m) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if m.CreationTimestamp.After(s.last) {
			s.last = time.Time{}
		}
		return outcome{}, nil
	}
	nodePool, err := s.eligible(ctx, nodeClaim, m)
	if err != nil || nodePool == nil {
		return outcome{}, err
	}
	nodeClass, err := s.nodeClass(ctx, nodeClaim)
	if err != nil {
		return outcome{}, err
	}
	source, launch := m.Annotations[v1alpha1.TemplateSourceAnnotation], s.deadline.stage(ctx, nodeClaim, nodeClass, m)
	expected, limit := s.times.usual(source)
	if limit >= launch.limit {
		return outcome{}, nil // deadlines.launch ends it before
	}
	since := s.Clock.Since(launch.end.Add(-launch.limit))
	if since < limit {
		return outcome{requeueAfter: limit - since}, nil
	}
	usual := "less: none has been seen yet"
	if expected > 0 {
		usual = expected.Round(time.Second).String()
	}
	late := fmt.Sprintf("(%s), where machines of template %s usually take %s", offeringOf(m).Description(), source, usual)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Clock.Since(s.last) < maxSlow {
		return s.stay(ctx, nodeClaim, m, late+"; one slow launch is replaced at a time")
	}
	key, capacity, ok := s.Alternative(ctx, nodeClaim, offeringOf(m))
	used := resources.Subtract(nodePool.Status.Resources, nodeClaim.Status.Capacity)
	if !ok || nodePool.Spec.Limits.ExceededBy(resources.Merge(used, capacity)) != nil {
		return s.stay(ctx, nodeClaim, m, late+"; no other offering can be launched")
	}
	return s.end(ctx, nodeClaim, m, fmt.Sprintf("no provider ID for %s %s; launching another offering, such as %s", since.Round(time.Second),
		late, key.Description()))
}

// eligible returns the NodePool of a NodeClaim that may be given up; nil if it may not. Another launch wouldn't get the reservation, or the
// vacancy of a node that was terminated first. It would wait as well for bootstrap data or for the Cluster's infrastructure. No pod waits
// for the replacement of a running node.
func (s *slow) eligible(ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine) (*karpv1.NodePool, error) {
	name := nodeClaim.Labels[karpv1.NodePoolLabelKey]
	switch {
	case name == "", nodeClaim.StatusConditions().Get(karpv1.ConditionTypeRegistered).IsTrue(),
		nodeClaim.Annotations[karpv1.DoNotDisruptAnnotationKey] == "true",
		m.Labels[v1alpha1.ReservationIDLabel] != "", m.Labels[karpv1.CapacityTypeLabelKey] == karpv1.CapacityTypeReserved,
		m.Annotations[v1alpha1.ReplacesAnnotation] != "", s.Machines.IsReplacement != nil && s.Machines.IsReplacement(nodeClaim.Name),
		paused(m), lastCondition(m).Type == clusterv1.MachineBootstrapConfigReadyCondition:
		return nil, nil //nolint:nilnil // it may not
	}
	if notReady, err := s.notReady(ctx); err != nil || notReady != "" {
		return nil, err
	}
	nodePool := &karpv1.NodePool{}
	if err := s.get(ctx, name, nodePool); err != nil {
		return nil, fmt.Errorf("reading NodePool %s: %w", name, err)
	}
	if nodePool.UID == "" || nodePool.DeletionTimestamp != nil || nodePool.Spec.Replicas != nil {
		return nil, nil //nolint:nilnil // it may not
	}
	return nodePool, nil
}

// stay reports on a NodeClaim that it is slow and goes on.
func (s *slow) stay(ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine, late string) (outcome, error) {
	message := fmt.Sprintf("no provider ID yet %s. The provider may report an unreachable infrastructure late: check its log. "+
		"The Machine reports %s",
		late, cmp.Or(detail(s.awaited(ctx, m)), "nothing"))
	conditions := nodeClaim.StatusConditions(status.WithClock(s.Clock))
	current := conditions.Get(ConditionMachineProvisioned)
	reported := current != nil && current.Reason == LaunchSlowReason
	if reported && current.Message == message {
		return outcome{requeueAfter: slowInterval}, nil
	}
	stored := nodeClaim.DeepCopy()
	conditions.SetUnknownWithReason(ConditionMachineProvisioned, LaunchSlowReason, message)
	if o, err := s.patchStatus(ctx, nodeClaim, stored); err != nil || o.done {
		return o, err
	}
	if !reported {
		s.Recorder.Publish(warning(nodeClaim, LaunchSlowReason, "%s", message))
	}
	return outcome{requeueAfter: slowInterval}, nil
}

// end gives up a launch. s.mu must be held.
func (s *slow) end(ctx context.Context, nodeClaim *karpv1.NodeClaim, cached *clusterv1.Machine, message string) (outcome, error) {
	m, err := s.deadline.live(ctx, cached)
	if err != nil || m == nil {
		return outcome{requeueAfter: requeueOnLag}, err
	}
	key, nodePool := offeringOf(m), nodeClaim.Labels[karpv1.NodePoolLabelKey]
	// Mark it first: the replacement must not get the same offering.
	until := s.Rejections.Mark(nodePool, key, LaunchSlowReason)
	if gone, err := s.giveUp(ctx, nodeClaim, "launch_slow"); err != nil || !gone {
		return outcome{done: true}, err
	}
	s.last = s.Clock.Now()
	s.Unavailable.CountFailure(key, LaunchSlowReason)
	logger(ctx, key).Info("machine takes longer than usual; giving it up", "template", cached.Annotations[v1alpha1.TemplateSourceAnnotation],
		"unavailableUntil", until)
	s.Recorder.Publish(warning(nodeClaim, LaunchSlowReason, "%s; the Machine reports %s%s for NodePool %s",
		message, cmp.Or(detail(s.awaited(ctx, m)), "nothing"), offering.RetryNotice(until), nodePool))
	return outcome{done: true}, nil
}
