// SPDX-License-Identifier: Apache-2.0

package methods

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// Why a replacement can't be launched beside its node, in addition to core's reasons.
const (
	// SourceFull: the machine's template source has its maximum size.
	SourceFull disruption.TerminateFirstReason = "source-full"
	// LeaseFull: the hosted cluster's CapacityLease leaves no room.
	LeaseFull disruption.TerminateFirstReason = "lease-full"
	// NoSpareHost: the infrastructure has no spare host.
	NoSpareHost disruption.TerminateFirstReason = "no-spare-host"
)

// Full is what keeps a replacement from being launched beside its node, apart from the node's reservation: the CapacityLease if it is
// neither.
type Full struct{ Host, Source bool }

// Reason returns why the node of a NodeClaim is terminated first.
func (f Full) Reason(nodeClaim *karpv1.NodeClaim) disruption.TerminateFirstReason {
	switch {
	case nodeClaim.Labels[v1alpha1.ReservationIDLabel] != "":
		return disruption.TerminateFirstNoReservedCapacity
	case f.Host:
		return NoSpareHost
	case f.Source:
		return SourceFull
	}
	return LeaseFull
}

// unhealthyThreshold is core's: more unhealthy nodes of a NodePool than this aren't repaired.
const unhealthyThreshold = "20%"

// TerminateFirstConfig is that of TerminateFirst.
type TerminateFirstConfig struct {
	Core
	CloudProvider karpcloudprovider.CloudProvider
	// Vacancies returns how many nodes of a NodePool have gone and haven't been replaced by initialized ones yet.
	Vacancies func(nodePool string) int
	// Vacate returns a context in which GetInstanceTypes answers as if a NodeClaim's machine had gone, and the full pools and quotas without
	// that; false if nothing could be launched then that can't be now.
	Vacate func(ctx context.Context, nodeClaim *karpv1.NodeClaim) (context.Context, Full, bool)
	// WithoutPending returns a context in which Guest lists no pending pods.
	WithoutPending func(ctx context.Context) context.Context
}

// TerminateFirst wraps those of Karpenter core's methods that replace drifted and unhealthy nodes: they terminate a node before its
// replacement is launched wherever that can't be launched beside it, and pace that by the NodePool's disruption budgets.
//
// Upstream gap: core does so for full reservations and for static NodePools at their limit of nodes only. What the terminated node leaves
// may be taken by others, and a budget counts the node no more once its NodeClaim is gone, although nothing has replaced it yet
// (docs/internals/upstream/terminate-first.md).
func TerminateFirst(methods []disruption.Method, config TerminateFirstConfig) []disruption.Method {
	wrapped := slices.Clone(methods)
	for i, m := range methods {
		switch m.(type) {
		case *disruption.Drift, *disruption.Repair:
			wrapped[i] = &dynamic{method{m, config}}
		case *disruption.StaticDrift:
			wrapped[i] = &static{method{m, config}}
		}
	}
	return wrapped
}

type method struct {
	disruption.Method
	config TerminateFirstConfig
}

// remaining returns the disruptions that budgets allow beside the nodes that haven't been replaced yet.
func (m *method) remaining(budgets map[string]int) map[string]int {
	remaining := make(map[string]int, len(budgets))
	for nodePool, allowed := range budgets {
		remaining[nodePool] = max(0, allowed-m.config.Vacancies(nodePool))
	}
	return remaining
}

// enabled reports whether the method's feature gate is on.
func (m *method) enabled(ctx context.Context) bool {
	gates := options.FromContext(ctx).FeatureGates
	if m.Reason() == karpv1.DisruptionReasonUnhealthy {
		return gates.TerminateFirstRepair
	}
	return gates.TerminateFirstDrift
}

// dynamic replaces nodes of NodePools that are scaled by pods.
type dynamic struct{ method }

// ComputeCommands implements disruption.Method. A node whose pods fit elsewhere, or whose replacement can be launched, goes first: those
// are core's commands.
func (m *dynamic) ComputeCommands(ctx context.Context, budgets map[string]int, candidates ...*disruption.Candidate,
) ([]disruption.Command, error) {
	budgets = m.remaining(budgets)
	commands, err := m.Method.ComputeCommands(ctx, budgets, candidates...)
	if err != nil || len(commands) > 0 || !m.enabled(ctx) {
		return commands, err
	}
	unhealthy, err := m.unhealthyPools(ctx)
	if err != nil {
		return nil, err
	}
	for _, candidate := range candidates {
		nodePool := candidate.NodePool.Name
		if budgets[nodePool] == 0 || unhealthy.Has(nodePool) || candidate.OwnedByStaticNodePool() ||
			candidate.RepairPolicyResult.Action == karpcloudprovider.RebootNode {
			continue
		}
		command, ok, err := m.terminate(ctx, candidate)
		if err != nil {
			return nil, err
		}
		if ok {
			return []disruption.Command{command}, nil
		}
	}
	return nil, nil
}

// terminate returns the command to terminate a node if its pods fit nowhere unless that goes. Pods that are pending don't count then: where
// some always wait for more than there is, core would place these into what the node leaves, and never replace it. As many pods run
// afterwards as before, whichever it is.
func (m *dynamic) terminate(ctx context.Context, candidate *disruption.Candidate) (command disruption.Command, ok bool, err error) {
	vacated, full, ok := m.config.Vacate(ctx, candidate.NodeClaim)
	if !ok {
		return disruption.Command{}, false, nil
	}
	simulate := func(ctx context.Context, opts ...scheduling.Options) (scheduling.Results, error) {
		return disruption.SimulateScheduling(ctx, m.config.Guest, m.config.Cluster, m.config.Provisioner, m.config.Clock, m.config.Recorder, opts,
			disruption.SimulationOptions{IncludeBlockedCandidatePods: m.Reason() == karpv1.DisruptionReasonUnhealthy}, candidate)
	}
	if results, err := simulate(ctx); err != nil || results.AllNonPendingPodsScheduled() {
		return disruption.Command{}, false, err // there is room again: core replaces it the next time
	}
	opts := []scheduling.Options{scheduling.DisableReservedCapacityFallback}
	if reservation := candidate.Labels()[karpcloudprovider.ReservationIDLabel]; reservation != "" {
		opts = append(opts, scheduling.CreditReservationCapacity(reservation, 1))
	}
	results, err := simulate(m.config.WithoutPending(vacated), opts...)
	if err != nil || !results.AllNonPendingPodsScheduled() || launches(results, candidate) > 1 {
		return disruption.Command{}, false, err // one machine doesn't make room for two
	}
	return disruption.Command{
		Candidates: []*disruption.Candidate{candidate}, Results: results, TerminateFirstReason: full.Reason(candidate.NodeClaim),
		PoolDisruptionCosts: map[string]float64{candidate.NodePool.Name: candidate.RescheduleDisruptionCost},
	}, true, nil
}

// launches returns how many nodes a simulation launches for pods of a candidate.
func launches(results scheduling.Results, candidate *disruption.Candidate) int {
	n := 0
	for _, nodeClaim := range results.NewNodeClaims {
		if slices.ContainsFunc(nodeClaim.Pods, func(pod *corev1.Pod) bool { return pod.Spec.NodeName == candidate.Name() }) {
			n++
		}
	}
	return n
}

// unhealthyPools returns the NodePools of which core repairs nothing because too many nodes are unhealthy.
func (m *dynamic) unhealthyPools(ctx context.Context) (sets.Set[string], error) {
	exceeded := sets.New[string]()
	matcher := m.config.Cluster.RepairPolicyMatcher()
	if m.Reason() != karpv1.DisruptionReasonUnhealthy || matcher == nil {
		return exceeded, nil
	}
	nodes := &corev1.NodeList{}
	if err := m.config.Guest.List(ctx, nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	all, unhealthy := map[string]int{}, map[string]int{}
	for i := range nodes.Items {
		nodePool := nodes.Items[i].Labels[karpv1.NodePoolLabelKey]
		if all[nodePool]++; slices.ContainsFunc(nodes.Items[i].Status.Conditions, matcher.Matches) {
			unhealthy[nodePool]++
		}
	}
	threshold := intstr.FromString(unhealthyThreshold)
	for nodePool, count := range all {
		if limit, err := intstr.GetScaledValueFromIntOrPercent(&threshold, count, true); err == nil && unhealthy[nodePool] > limit {
			exceeded.Insert(nodePool)
		}
	}
	return exceeded, nil
}

// static replaces nodes of NodePools with a fixed number of them.
type static struct{ method }

// ComputeCommands implements disruption.Method. Core would launch a replacement that fails.
func (m *static) ComputeCommands(ctx context.Context, budgets map[string]int, candidates ...*disruption.Candidate,
) ([]disruption.Command, error) {
	budgets = m.remaining(budgets)
	var commands []disruption.Command
	if m.enabled(ctx) {
		pools := map[string][]*disruption.Candidate{}
		for _, candidate := range candidates {
			pools[candidate.NodePool.Name] = append(pools[candidate.NodePool.Name], candidate)
		}
		for _, name := range slices.Sorted(maps.Keys(pools)) {
			if first := m.terminate(ctx, pools[name], budgets[name]); len(first) > 0 {
				commands = append(commands, first...)
				candidates = slices.DeleteFunc(slices.Clone(candidates), func(c *disruption.Candidate) bool { return c.NodePool.Name == name })
			}
		}
	}
	if len(candidates) == 0 {
		return commands, nil
	}
	others, err := m.Method.ComputeCommands(ctx, budgets, candidates...)
	return append(commands, others...), err
}

// terminate returns commands to terminate nodes of one NodePool, of which none can be launched unless one goes.
func (m *static) terminate(ctx context.Context, candidates []*disruption.Candidate, budget int) (commands []disruption.Command) {
	nodePool := candidates[0].NodePool
	// Static provisioning refuses NodePools that aren't ready. Scale-down goes first.
	if budget == 0 || !nodePool.StatusConditions().Root().IsTrue() || nodePool.DeletionTimestamp != nil {
		return nil
	}
	running, _, disrupted := m.config.Cluster.NodePoolState.GetNodeCount(nodePool.Name)
	if nodePool.Spec.Replicas == nil || int64(running+disrupted) > *nodePool.Spec.Replicas || m.launchable(ctx, nodePool) {
		return nil
	}
	for _, candidate := range candidates {
		vacated, full, ok := m.config.Vacate(ctx, candidate.NodeClaim)
		if len(commands) == budget || !ok || !m.launchable(vacated, nodePool) {
			continue
		}
		commands = append(commands, disruption.Command{
			Candidates: []*disruption.Candidate{candidate}, TerminateFirstReason: full.Reason(candidate.NodeClaim),
			PoolDisruptionCosts: map[string]float64{nodePool.Name: candidate.RescheduleDisruptionCost},
		})
	}
	return commands
}

// launchable reports whether a node of a static NodePool can be launched; true if that isn't known.
func (m *static) launchable(ctx context.Context, nodePool *karpv1.NodePool) bool {
	instanceTypes, err := m.config.CloudProvider.GetInstanceTypes(ctx, nodePool)
	if err != nil {
		log.FromContext(ctx).V(1).Info("finding out whether a node can be launched", "NodePool", nodePool.Name, "error", err.Error())
		return true
	}
	requirements := scheduling.NewNodeClaimTemplate(nodePool).Requirements
	return slices.ContainsFunc(instanceTypes, func(it *karpcloudprovider.InstanceType) bool {
		return it.Requirements.Intersects(requirements) == nil && len(it.Offerings.Launchable().Compatible(requirements)) > 0
	})
}

// TerminateFirstReason is the reason of the event on a NodeClaim, its Node and its NodePool: a node is terminated before its replacement is
// launched. The message reports the full capacity. Raise that, and nodes are replaced first again.
const TerminateFirstReason = v1alpha1.TerminateFirstCondition

// Terminated returns a func that gets each NodeClaim that was deleted. It calls hold for those that Karpenter core's disruption queue
// terminates first, and publishes the events.
func Terminated(
	queue func() *disruption.Queue, recorder events.Recorder, hold func(nodeClaim *karpv1.NodeClaim, full string, noSpareHost bool),
) func(*karpv1.NodeClaim) {
	return func(nodeClaim *karpv1.NodeClaim) {
		candidate, reason := candidateOf(queue(), nodeClaim)
		if reason == "" {
			return
		}
		full := message(nodeClaim, reason)
		hold(nodeClaim, full, reason == NoSpareHost)
		text := "Terminating before its replacement is launched: " + full
		involved := map[client.Object]string{nodeClaim: text}
		if candidate.Node != nil {
			involved[candidate.Node] = text
		}
		if candidate.NodePool != nil {
			involved[candidate.NodePool] = fmt.Sprintf("Terminating node %s before its replacement is launched: %s", candidate.Name(), full)
		}
		for object, text := range involved {
			recorder.Publish(events.Event{
				InvolvedObject: object, Type: corev1.EventTypeNormal, Reason: TerminateFirstReason, Message: text,
				DedupeValues: []string{string(object.GetUID()), string(nodeClaim.UID)},
			})
		}
	}
}

// candidateOf returns the candidate for which the queue deletes a NodeClaim, and why it is terminated first; the queue has objects of its
// own.
func candidateOf(queue *disruption.Queue, nodeClaim *karpv1.NodeClaim) (*disruption.Candidate, disruption.TerminateFirstReason) {
	queue.RLock()
	defer queue.RUnlock()
	if command := queue.ProviderIDToCommand[nodeClaim.Status.ProviderID]; command != nil {
		for _, candidate := range command.Candidates {
			if candidate.NodeClaim == nodeClaim {
				return candidate, command.TerminateFirstReason
			}
		}
	}
	return nil, ""
}

// message names the full pools and quotas.
func message(nodeClaim *karpv1.NodeClaim, reason disruption.TerminateFirstReason) string {
	switch reason {
	case disruption.TerminateFirstNoReservedCapacity:
		return fmt.Sprintf("reservation %s is full", nodeClaim.Labels[v1alpha1.ReservationIDLabel])
	case disruption.TerminateFirstStaticAtLimit:
		return "spec.limits.nodes of the NodePool leaves no room for another node"
	case SourceFull:
		return "the template source of its machine has its maximum size"
	case LeaseFull:
		return "the hosted cluster's CapacityLease leaves no room for another machine"
	case NoSpareHost:
		return "the infrastructure has no spare host"
	}
	return string(reason)
}
