// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"
	nodepoolutils "sigs.k8s.io/karpenter/pkg/utils/nodepool"
	podutils "sigs.k8s.io/karpenter/pkg/utils/pod"
	"sigs.k8s.io/karpenter/pkg/utils/resources"
)

// Pod explains why a pod has no node.
func (s *Simulation) Pod(ctx context.Context, key client.ObjectKey) (*PodAnswer, error) {
	ctx = s.context(ctx)
	pod := &corev1.Pod{}
	if err := s.Guest.Get(ctx, key, pod); apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("namespace %q has no pod %q; see `kubectl -n %s get pods`", key.Namespace, key.Name, key.Namespace)
	} else if err != nil {
		return nil, err
	}
	answer := &PodAnswer{Pod: key.String()}
	name := "Pod " + key.String()
	if decision, reason := ignored(pod); decision != "" {
		answer.Decision, answer.Summary, answer.Node = decision, name+" "+reason, pod.Spec.NodeName
		return answer, nil
	}
	provisioner := s.provisioner(s.Guest, s.cloudProvider)
	if err := provisioner.Validate(ctx, pod); err != nil {
		answer.Decision, answer.Summary = Unschedulable, fmt.Sprintf("%s is ignored by Karpenter: %s", name, sentence(err))
		return answer, nil
	}
	results, err := provisioner.Schedule(ctx)
	if err != nil {
		return nil, fmt.Errorf("scheduling the pending pods: %w", err)
	}
	if existing := holding(results.ExistingNodes, pod.UID); existing != nil {
		s.fits(answer, name, existing)
		return answer, nil
	}
	answer.Missing = s.Missing // what isn't known of instance types matters from here on
	nodePools := list[*karpv1.NodePool](s.Guest)
	nodepoolutils.OrderByWeight(nodePools)
	fitting := 0
	for _, nodePool := range nodePools {
		alone := s.nodePool(ctx, nodePool, pod)
		if alone.Fits {
			fitting++
		}
		answer.NodePools = append(answer.NodePools, alone)
	}
	if claim := launching(results.NewNodeClaims, pod.UID); claim != nil {
		s.launches(answer, name, claim)
		return answer, nil
	}
	answer.Decision = Unschedulable
	answer.Missing = slices.Concat(s.Approximate, s.Missing)
	answer.Nodes = s.refusingNodes(ctx, results.ExistingNodes, pod)
	switch why := errorOf(results.PodErrors, pod.UID); {
	case len(nodePools) == 0:
		answer.Summary = name + " gets no node: the cluster has no NodePool"
		answer.Waits = append(answer.Waits, "a NodePool: see `kubectl explain nodepools.spec`")
	case fitting > 0 && why != nil:
		answer.Summary = fmt.Sprintf("%s fits %s alone, but not together with the other pending pods: %s",
			name, english.Plural(fitting, "NodePool", ""), sentence(why))
	case closed(answer.NodePools) != "":
		answer.Summary = fmt.Sprintf("%s has to wait: it fits NodePool %s, but no instance type that fits can be launched now", name,
			closed(answer.NodePools))
		answer.Waits = append(answer.Waits, "one of them to become available: Karpenter retries; the reasons are below")
	default:
		answer.Summary = fmt.Sprintf("%s fits none of %s", name, english.Plural(len(nodePools), "NodePool", ""))
		if len(nodePools) == 1 {
			answer.Summary = fmt.Sprintf("%s doesn't fit NodePool %s", name, nodePools[0].Name)
		}
	}
	return answer, nil
}

// closed returns the first NodePool with an instance type that fits and can't be launched now; empty for none.
func closed(nodePools []NodePoolAnswer) string {
	for i := range nodePools {
		if refused := nodePools[i].Refused; !nodePools[i].Fits && len(refused) > 0 && refused[0].rank == rankUnavailable {
			return nodePools[i].Name
		}
	}
	return ""
}

// ignored returns why Karpenter launches no node for a pod, independent of its NodePools.
func ignored(pod *corev1.Pod) (decision Decision, reason string) {
	gates := make([]string, len(pod.Spec.SchedulingGates))
	for i, gate := range pod.Spec.SchedulingGates {
		gates[i] = gate.Name
	}
	owner := func() string {
		if ref := metav1.GetControllerOf(pod); ref != nil {
			return ref.Kind + " " + ref.Name
		}
		return "its owner"
	}
	switch {
	case podutils.IsTerminal(pod):
		return Bound, fmt.Sprintf("needs no node: it is %s", pod.Status.Phase)
	case podutils.IsScheduled(pod):
		return Bound, fmt.Sprintf("is on node %s, phase %s", pod.Spec.NodeName, pod.Status.Phase)
	case podutils.IsTerminating(pod):
		return Ignored, "is being deleted"
	case podutils.IsOwnedByDaemonSet(pod):
		return Ignored, fmt.Sprintf("belongs to %s: Karpenter launches no nodes for pods of DaemonSets, "+
			"it keeps room for them on those that it launches", owner())
	case podutils.IsOwnedByNode(pod):
		return Ignored, "is a static pod of a node"
	case podutils.IsPreempting(pod):
		return Ignored, fmt.Sprintf("waits for node %s, where kube-scheduler evicts pods of a lower priority for it",
			pod.Status.NominatedNodeName)
	case len(gates) > 0:
		return Ignored, fmt.Sprintf("has scheduling gates (%s): nothing schedules it until their owners remove them", strings.Join(gates, ", "))
	case !podutils.FailedToSchedule(pod):
		return Ignored, fmt.Sprintf("hasn't been tried by its scheduler, %s: Karpenter acts once condition PodScheduled has reason Unschedulable",
			cmp.Or(pod.Spec.SchedulerName, corev1.DefaultSchedulerName))
	}
	return "", ""
}

// fits adds what a pod that needs no new node waits for.
func (s *Simulation) fits(answer *PodAnswer, name string, existing *scheduling.ExistingNode) {
	answer.Decision, answer.Node = Fits, existing.Name()
	switch claim := existing.NodeClaim; {
	case existing.Initialized() || claim == nil:
		answer.Summary = fmt.Sprintf("%s fits on node %s", name, answer.Node)
		answer.Waits = append(answer.Waits, "kube-scheduler binds it. If it doesn't, it applies a limit that Karpenter doesn't have: "+
			"see the events of the pod")
	default:
		answer.Summary = fmt.Sprintf("%s waits for NodeClaim %s, which Karpenter has launched", name, claim.Name)
		for _, condition := range []string{karpv1.ConditionTypeLaunched, "MachineProvisioned", karpv1.ConditionTypeRegistered,
			karpv1.ConditionTypeInitialized} {
			if c := claim.StatusConditions().Get(condition); !c.IsTrue() && (condition != "MachineProvisioned" || messageOf(c) != "") {
				text := fmt.Sprintf("condition %s of NodeClaim %s: %s", condition, claim.Name, messageOf(c))
				answer.Waits = append(answer.Waits, strings.TrimSuffix(text, ": "))
				break
			}
		}
	}
}

// launches adds which node a pod gets, and what has yet to happen.
func (s *Simulation) launches(answer *PodAnswer, name string, claim *scheduling.NodeClaim) {
	answer.Decision = Launches
	accepted := acceptedOf(claim)
	together := ""
	if others := len(claim.Pods) - 1; others > 0 {
		together = " for it and " + english.Plural(others, "other pod", "")
	}
	answer.Summary = fmt.Sprintf("%s needs a new node, which NodePool %s can launch%s: %s",
		name, claim.NodePoolName, together, english.Plural(len(accepted), "instance type", ""))
	if len(accepted) > 0 {
		answer.Summary += fmt.Sprintf(", the cheapest %s at $%.3f an hour", accepted[0].InstanceType, accepted[0].Price)
	}
	for i := range answer.NodePools {
		if nodePool := &answer.NodePools[i]; nodePool.Name == claim.NodePoolName && nodePool.AcceptedCount != len(accepted) {
			nodePool.Reason += " the pod alone" // the other pending pods exclude some of them
		}
	}
	unlaunched := []string{}
	for _, nodeClaim := range list[*karpv1.NodeClaim](s.Guest) {
		if nodeClaim.Status.ProviderID == "" {
			unlaunched = append(unlaunched, nodeClaim.Name)
		}
	}
	if len(unlaunched) > 0 {
		answer.Waits = append(answer.Waits, "NodeClaims without a provider ID, which Karpenter waits for: "+strings.Join(first(unlaunched), ", "))
	}
	answer.Waits = append(answer.Waits, fmt.Sprintf("Karpenter launches after it has seen no other pending pod for %s, at the latest after "+
		"%s. "+
		"If the pod is older than that, Karpenter doesn't run or can't launch: see the pod's and the NodeClaims' events",
		s.Options.BatchIdleDuration, s.Options.BatchMaxDuration))
}

func holding(nodes []*scheduling.ExistingNode, pod types.UID) *scheduling.ExistingNode {
	for _, node := range nodes {
		if slices.ContainsFunc(node.Pods, func(p *corev1.Pod) bool { return p.UID == pod }) {
			return node
		}
	}
	return nil
}

func launching(claims []*scheduling.NodeClaim, pod types.UID) *scheduling.NodeClaim {
	for _, claim := range claims {
		if slices.ContainsFunc(claim.Pods, func(p *corev1.Pod) bool { return p.UID == pod }) {
			return claim
		}
	}
	return nil
}

func errorOf(errs map[*corev1.Pod]error, pod types.UID) error {
	for p, err := range errs {
		if p.UID == pod {
			return err
		}
	}
	return nil
}

// refusingNodes checks of each node that exists why it can't have a pod.
func (s *Simulation) refusingNodes(ctx context.Context, nodes []*scheduling.ExistingNode, pod *corev1.Pod) []Refusal {
	data := &scheduling.PodData{
		Requests: resources.RequestsForPods(pod), Requirements: karpscheduling.NewPodRequirements(pod),
		StrictRequirements: karpscheduling.NewStrictPodRequirements(pod),
	}
	volumes, err := karpscheduling.GetVolumes(ctx, s.Guest, pod)
	if err != nil {
		return []Refusal{{Reason: sentence(err), Count: len(nodes)}}
	}
	refusals := refusals{}
	for _, node := range nodes {
		if _, _, err := node.CanAdd(ctx, pod, data, volumes, nil); err != nil {
			refusals.add(0, sentence(err), node.Name())
		} else {
			refusals.add(1, "its room goes to other pending pods, or a preference of the pod excludes it", node.Name())
		}
	}
	return refusals.sorted()
}

// refusals are by reason.
type refusals map[string]*Refusal

func (r refusals) add(rank int, reason, name string) {
	if r[reason] == nil {
		r[reason] = &Refusal{Reason: reason, rank: rank}
	}
	r[reason].Count++
	r[reason].Names = append(r[reason].Names, name)
}

func (r refusals) sorted() []Refusal {
	sorted := make([]Refusal, 0, len(r))
	for _, refusal := range r {
		slices.Sort(refusal.Names)
		refusal.Names = first(refusal.Names)
		sorted = append(sorted, *refusal)
	}
	slices.SortFunc(sorted, func(a, b Refusal) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(b.Count, a.Count), cmp.Compare(a.Reason, b.Reason))
	})
	return sorted
}

func first(names []string) []string { return names[:min(len(names), maxNames)] }

// sentence is an error's text on one line.
func sentence(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

func messageOf(condition *status.Condition) string {
	if condition == nil {
		return ""
	}
	return strings.Join(strings.Fields(condition.Message), " ")
}
