// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/clock"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/node/health"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/utils/pdb"
	podutils "sigs.k8s.io/karpenter/pkg/utils/pod"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/core/methods"
	"github.com/autonode-io/autonode/karpenter/core/reconciler"
)

// Node explains why a node, named directly or by its NodeClaim, stays or goes.
func (s *Simulation) Node(ctx context.Context, name string) (*NodeAnswer, error) {
	ctx = s.context(ctx)
	node := s.stateNode(name)
	if node == nil {
		return nil, fmt.Errorf("the cluster has no node and no NodeClaim %q; see `kubectl get nodes,nodeclaims`", name)
	}
	answer := &NodeAnswer{Node: name, Missing: slices.Concat(s.Approximate, s.Missing, s.missingOfNodes)}
	if node.Node != nil {
		answer.Node = node.Node.Name
	}
	if node.NodeClaim == nil {
		answer.Decision = Unmanaged
		answer.Summary = fmt.Sprintf("Node %s isn't managed by Karpenter: it has no NodeClaim, so Karpenter neither removes nor replaces "+
			"it", answer.Node)
		return answer, nil
	}
	answer.NodeClaim, answer.NodePool = node.NodeClaim.Name, node.Labels()[karpv1.NodePoolLabelKey]
	var err error
	if answer.Blocking, err = s.blocking(ctx, node); err != nil {
		return nil, err
	}
	answer.Facts = s.facts(node)
	if node.NodeClaim.DeletionTimestamp != nil {
		pods, err := node.Pods(ctx, s.Guest)
		if err != nil {
			return nil, err
		}
		evicting := len(slices.DeleteFunc(pods, func(pod *corev1.Pod) bool { return !podutils.IsWaitingEviction(pod, s.Clock) }))
		answer.Decision = Terminating
		why := ""
		if disrupted := node.NodeClaim.StatusConditions().Get(karpv1.ConditionTypeDisruptionReason); disrupted.IsTrue() &&
			disrupted.Reason == string(capacityReclaimed) {
			why = " because another cluster reclaims its capacity"
		}
		answer.Summary = fmt.Sprintf("Node %s is being removed%s: %s left to evict", answer.Node, why, english.Plural(evicting, "pod", ""))
		return answer, nil
	}
	if answer.Methods, err = s.methods(ctx, node); err != nil {
		return nil, err
	}
	answer.conclude(s.isStatic(answer.NodePool))
	if s.Vacate == nil && answer.Decision == Stays && node.NodeClaim.StatusConditions().Get(karpv1.ConditionTypeDrifted).IsTrue() {
		answer.Missing = append(answer.Missing, "Karpenter may terminate the node before it launches the replacement, where nothing has room "+
			"for both; that isn't computed without the management cluster (--management-kubeconfig)")
	}
	return answer, nil
}

func (s *Simulation) isStatic(name string) bool {
	nodePool := named[*karpv1.NodePool](s.Guest, name)
	return nodePool != nil && nodePool.Spec.Replicas != nil
}

// conclude sums the methods up. static means that the NodePool is static, so that only its drift replaces the node.
func (a *NodeAnswer) conclude(static bool) {
	for _, method := range a.Methods {
		if method.Disrupts {
			a.Decision, a.Summary = Disrupted, fmt.Sprintf("Node %s can be disrupted now (%s): %s", a.Node, method.Name, method.Reason)
			return
		}
	}
	a.Decision = Stays
	why := "none of Karpenter's disruption methods applies to it"
	if len(a.Methods) > 0 {
		// The last is the one that a person requests: consolidation.
		why = a.Methods[len(a.Methods)-1].Reason
	}
	if i := slices.IndexFunc(a.Methods, func(m MethodAnswer) bool { return m.Name == staticDrift }); static && i >= 0 {
		why = a.Methods[i].Reason
	}
	a.Summary = fmt.Sprintf("Node %s stays: %s", a.Node, why)
}

func (s *Simulation) stateNode(name string) *state.StateNode {
	for _, node := range s.cluster.DeepCopyNodes() {
		if node.Node != nil && node.Node.Name == name || node.NodeClaim != nil && node.NodeClaim.Name == name {
			return node
		}
	}
	return nil
}

// capacityReclaimed is the reason of the method that returns capacity to other clusters.
const capacityReclaimed = karpv1.DisruptionReason(autonodev1alpha1.CapacityReclaimedReason)

const staticDrift = "drift of a static NodePool"

// methodNames are what a person calls Karpenter's methods.
var methodNames = map[string]string{
	"*reclaim.Method":                     "reclaim",
	"*disruption.Repair":                  "repair",
	"*disruption.Emptiness":               "empty",
	"*disruption.StaticDrift":             staticDrift,
	"*disruption.Drift":                   "drift",
	"*disruption.MultiNodeConsolidation":  "consolidation with other nodes",
	"*disruption.SingleNodeConsolidation": "consolidation",
}

// methods has each of Karpenter core's methods compute what it would do.
func (s *Simulation) methods(ctx context.Context, node *state.StateNode) ([]MethodAnswer, error) {
	clk := hurried{s.Clock}
	provisioner := s.provisioner(s.Guest, s.cloudProvider)
	queue := disruption.NewQueue(s.Guest, s.recorder, s.cluster, clk, provisioner)
	all := disruption.NewMethods(ctx, clk, s.cluster, s.Guest, provisioner, s.cloudProvider, s.recorder, queue)
	names := make([]string, len(all))
	for i, method := range all {
		names[i] = methodNames[fmt.Sprintf("%T", method)]
	}
	core := methods.Core{Guest: s.Guest, Cluster: s.cluster, Provisioner: provisioner, Recorder: s.recorder, Clock: clk}
	if s.Vacate != nil {
		all = methods.TerminateFirst(all, methods.TerminateFirstConfig{
			Core: core, CloudProvider: s.cloudProvider,
			Vacancies: func(string) int { return 0 }, // what Karpenter holds isn't known; facts has the NodePool's condition
			Vacate: func(ctx context.Context, nodeClaim *karpv1.NodeClaim) (context.Context, methods.Full, bool) {
				vacated, full, ok := s.Vacate(ctx, nodeClaim)
				return context.WithValue(vacated, vacatedKey{}, true), full, ok
			},
			WithoutPending: func(ctx context.Context) context.Context { return context.WithValue(ctx, withoutPendingKey{}, true) },
		})
	}
	for _, first := range s.Methods {
		if method := first(core); method != nil {
			all, names = slices.Insert(all, 0, method), slices.Insert(names, 0, methodNames[fmt.Sprintf("%T", method)])
		}
	}
	var answers []MethodAnswer
	for i, method := range all {
		answer := MethodAnswer{Name: names[i]}
		var err error
		if answer.Disrupts, answer.Reason, err = s.ask(ctx, names[i], method, queue, clk, node); err != nil {
			return nil, fmt.Errorf("computing %s of node %s: %w", answer.Name, node.Name(), err)
		}
		answers = append(answers, answer)
	}
	return answers, nil
}

// ask runs a method as Karpenter core's disruption controller does.
func (s *Simulation) ask(ctx context.Context, name string, method disruption.Method, queue *disruption.Queue, clk clock.Clock,
	node *state.StateNode,
) (disrupts bool, reason string, err error) {
	uid := node.NodeClaim.UID
	s.recorder.drain(uid)
	considered := map[string]bool{}
	accept := func(ctx context.Context, candidate *disruption.Candidate) bool {
		considered[candidate.ProviderID()] = true
		return method.ShouldDisrupt(ctx, candidate)
	}
	candidates, totals, err := disruption.GetCandidatesWithTotals(ctx, s.cluster, s.Guest, s.recorder, clk, s.cloudProvider,
		accept, method.Class(), queue, s.cost)
	if err != nil {
		return false, "", err
	}
	said := s.recorder.drain(uid, events.DisruptionBlocked, events.Unconsolidatable, events.NodeRepairBlocked)
	isOurs := func(c *disruption.Candidate) bool { return c.ProviderID() == node.ProviderID() }
	ours := slices.IndexFunc(candidates, isOurs)
	switch {
	case ours < 0 && len(said) > 0:
		return false, strings.Join(said, "; "), nil
	case ours < 0:
		return false, s.unconsidered(method, node, considered[node.ProviderID()]), nil
	}
	candidate, reclaims := candidates[ours], method.Reason() == capacityReclaimed
	if method.ConsolidationType() != disruption.MultiNodeConsolidationType.Name && !reclaims {
		candidates = candidates[ours : ours+1] // not another one first
	}
	// Core says nothing of a move that Balanced rejects. Of one node alone the answer has core compute the move, and scores it itself.
	single := method.ConsolidationType() == disruption.SingleNodeConsolidationType.Name
	if setter, ok := method.(disruption.NodePoolTotalsSetter); ok && !single {
		setter.SetNodePoolTotals(totals)
	}
	budgets, err := disruption.BuildDisruptionBudgetMapping(ctx, s.cluster, clk, s.Guest, s.cloudProvider, s.recorder, method.Reason())
	if err != nil {
		return false, "", err
	}
	// Karpenter repairs a node that isn't initialized whatever the budgets say, and reclaims one after the deadline.
	if budgets[candidate.NodePool.Name] == 0 && !reclaims && (method.Reason() != karpv1.DisruptionReasonUnhealthy || candidate.Initialized()) {
		count := "nodes that aren't Ready or are being removed count against them"
		if method.Reason() == karpv1.DisruptionReasonUnhealthy {
			count = "nodes that are being removed or rebooted count against them"
		}
		return false, fmt.Sprintf("the budgets of NodePool %s allow no disruption for reason %s now; %s",
			candidate.NodePool.Name, method.Reason(), count), nil
	}
	commands, err := method.ComputeCommands(ctx, budgets, candidates...)
	if errors.Is(err, ErrReadOnly) && candidate.RepairPolicyResult.Action == karpcloudprovider.RebootNode {
		// Karpenter core commits a reboot before it returns the command.
		commands, err = []disruption.Command{{Candidates: []*disruption.Candidate{candidate}, Reboot: true}}, nil
	}
	if err != nil {
		return false, "", err
	}
	for _, command := range commands {
		if slices.ContainsFunc(command.Candidates, isOurs) {
			if reclaims {
				return true, strings.Join(s.recorder.drain(uid, string(capacityReclaimed)), "; "), nil
			}
			if approved, scores := disruption.EvaluateBalancedMove(ctx, command, totals); single && !approved {
				score := scores[candidate.NodePool.Name]
				return false, fmt.Sprintf("consolidationPolicy Balanced of NodePool %s keeps it: %s, %.1f%% of the NodePool's cost, and that is "+
					"less than half its share of the NodePool's disruption cost, %.1f%%", candidate.NodePool.Name, describe(method, command),
					100*score.SavingsFraction, 100*score.DisruptionFraction), nil
			}
			return true, describe(method, command), nil
		}
	}
	if name == staticDrift && reconciler.NoReplacement(candidate.NodePool) != "" {
		return false, reconciler.NoReplacement(candidate.NodePool), nil // Karpenter's own event doesn't say what to change
	}
	if said := s.recorder.drain(uid, events.DisruptionBlocked, events.Unconsolidatable, events.ConsolidationRejected, events.NodeRepairBlocked,
		string(capacityReclaimed)); len(said) > 0 {
		return false, strings.Join(said, "; "), nil
	}
	if len(commands) > 0 {
		return false, "other nodes go first: " + describe(method, commands[0]), nil
	}
	return false, "there is nothing to gain", nil
}

// unconsidered returns why a method doesn't take a node that nothing blocks.
func (s *Simulation) unconsidered(method disruption.Method, node *state.StateNode, possible bool) string {
	switch claim := node.NodeClaim; {
	case !possible:
		return "the node can't be disrupted"
	case method.Reason() == capacityReclaimed:
		return "its machine holds no capacity that other clusters reclaim"
	case method.Reason() == karpv1.DisruptionReasonUnhealthy:
		return s.unrepaired(node)
	case method.Reason() == karpv1.DisruptionReasonDrifted && claim.StatusConditions().Get(karpv1.ConditionTypeDrifted).IsTrue():
		return "it applies only to the other kind of NodePool, with or without spec.replicas"
	case method.Reason() == karpv1.DisruptionReasonDrifted:
		if image := s.olderImage(node); image != "" {
			return "the node hasn't drifted: " + image
		}
		return "the node hasn't drifted"
	case claim.StatusConditions().Get(karpv1.ConditionTypeConsolidatable).IsTrue():
		if method.Reason() == karpv1.DisruptionReasonEmpty {
			return "the node isn't empty"
		}
		return "the node is empty, which another method handles"
	}
	after := ""
	nodePool := named[*karpv1.NodePool](s.Guest, node.Labels()[karpv1.NodePoolLabelKey])
	if nodePool != nil && nodePool.Spec.Disruption.ConsolidateAfter.Duration != nil {
		wait := *nodePool.Spec.Disruption.ConsolidateAfter.Duration
		after = fmt.Sprintf(": consolidateAfter of NodePool %s is %s", nodePool.Name, wait)
		since := node.NodeClaim.Status.LastPodEventTime.Time
		if since.IsZero() {
			since = node.NodeClaim.StatusConditions().Get(karpv1.ConditionTypeInitialized).LastTransitionTime.Time
		}
		if rest := since.Add(wait).Sub(s.Clock.Now()); rest > 0 {
			after += fmt.Sprintf(", and its pods changed %s ago; %s left",
				duration.HumanDuration(s.Clock.Since(since)), duration.HumanDuration(rest))
		}
	}
	return "the NodeClaim isn't Consolidatable yet" + after
}

// unrepaired returns when a node will be repaired, or that nothing is to be repaired.
func (s *Simulation) unrepaired(node *state.StateNode) string {
	matcher := s.cluster.RepairPolicyMatcher()
	if matcher == nil || node.Node == nil {
		return "the node has no condition that is repaired"
	}
	first := health.RepairResult{}
	for _, match := range matcher.Match(node.Node) {
		due := health.Resolve([]health.RepairPolicyMatch{match}, s.Clock.Now().Add(2*v1alpha1.MaxRepairToleration), time.Time{})
		if first.Action == "" || due.SelectedEligibleAt.Before(first.SelectedEligibleAt) {
			first = due
		}
	}
	if first.Action == "" {
		return "the node has no condition that is repaired"
	}
	condition := fmt.Sprintf("%s=%s", first.Condition, first.ConditionStatus)
	if first.Reason != "" {
		condition += " (" + first.Reason + ")"
	}
	if rest := first.SelectedEligibleAt.Sub(s.Clock.Now()); rest > 0 {
		return fmt.Sprintf("%s is repaired in %s: %s", condition, duration.HumanDuration(rest), first.Action)
	}
	return condition + " isn't repaired now"
}

// describe returns what a command of a method does.
func describe(method disruption.Method, command disruption.Command) string {
	nodes, pods := "it", "its"
	if others := len(command.SourceNodeNames()) - 1; others > 0 {
		nodes, pods = "it and "+english.Plural(others, "other node", ""), "their"
	}
	text := fmt.Sprintf("%s would be removed, %s pods fit on other nodes", nodes, pods)
	var replacements []string
	for _, replacement := range command.Replacements {
		if accepted := acceptedOf(replacement.NodeClaim); len(accepted) > 0 {
			replacements = append(replacements, fmt.Sprintf("%s at $%.3f an hour", accepted[0].InstanceType, accepted[0].Price))
		}
	}
	if len(command.Replacements) > 0 {
		text = fmt.Sprintf("%s would be replaced by %s", nodes, strings.Join(replacements, " and "))
	}
	if command.TerminateFirstReason != "" {
		text = fmt.Sprintf("it would be terminated before its replacement is launched (%s)", command.TerminateFirstReason)
	}
	switch method.Reason() {
	case karpv1.DisruptionReasonDrifted, capacityReclaimed:
		return text
	case karpv1.DisruptionReasonUnhealthy:
		if command.Reboot {
			text = "it would be drained and its machine rebooted"
		}
		if repair := command.Candidates[0].RepairPolicyResult; repair.Condition != "" {
			text = fmt.Sprintf("%s=%s: %s", repair.Condition, repair.ConditionStatus, text)
		}
		return text
	}
	return fmt.Sprintf("%s, which saves $%.3f an hour", text, command.EstimatedSavings())
}

// blocking lists everything that keeps a node, where Karpenter core reports the first.
func (s *Simulation) blocking(ctx context.Context, node *state.StateNode) ([]string, error) {
	var found []string
	if node.Annotations()[karpv1.DoNotDisruptAnnotationKey] == "true" {
		found = append(found, "the node's annotation "+karpv1.DoNotDisruptAnnotationKey)
	}
	limits, err := pdb.NewLimits(ctx, s.Guest)
	if err != nil {
		return nil, fmt.Errorf("reading PodDisruptionBudgets: %w", err)
	}
	pods, err := node.Pods(ctx, s.Guest)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name) })
	for _, pod := range pods {
		name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}.String()
		if !podutils.IsDisruptable(pod, s.Clock, s.recorder) {
			found = append(found, fmt.Sprintf("pod %s has annotation %s", name, karpv1.DoNotDisruptAnnotationKey))
		}
		if budgets, evictable := limits.CanEvictPods([]*corev1.Pod{pod}, s.Clock, s.recorder); !evictable {
			names := make([]string, len(budgets))
			for i, budget := range budgets {
				names[i] = budget.String()
			}
			reason := fmt.Sprintf("pod %s: PodDisruptionBudget %s allows no eviction now", name, strings.Join(names, ", "))
			if len(budgets) > 1 {
				reason = fmt.Sprintf("pod %s has several PodDisruptionBudgets (%s), and the API server evicts no such pod",
					name, strings.Join(names, ", "))
			}
			found = append(found, reason)
		}
	}
	return found, nil
}

// facts of a node that its NodePool's settings are about.
func (s *Simulation) facts(node *state.StateNode) []string {
	claim, labels := node.NodeClaim, node.Labels()
	facts := []string{fmt.Sprintf("%s in zone %s, %s",
		labels[corev1.LabelInstanceTypeStable], labels[corev1.LabelTopologyZone], labels[karpv1.CapacityTypeLabelKey])}
	if drifted := claim.StatusConditions().Get(karpv1.ConditionTypeDrifted); drifted.IsTrue() {
		facts = append(facts, "drifted: "+drifted.Reason)
	}
	if image := s.olderImage(node); image != "" {
		facts = append(facts, image)
	}
	if expires := claim.Spec.ExpireAfter.Duration; expires != nil {
		if remaining := claim.CreationTimestamp.Add(*expires).Sub(s.Clock.Now()); remaining > 0 {
			facts = append(facts, "expires in "+duration.HumanDuration(remaining))
		} else {
			facts = append(facts, "has expired")
		}
	}
	if nodePool := named[*karpv1.NodePool](s.Guest, labels[karpv1.NodePoolLabelKey]); nodePool != nil {
		d := nodePool.Spec.Disruption
		after := "Never"
		if d.ConsolidateAfter.Duration != nil {
			after = d.ConsolidateAfter.Duration.String()
		}
		facts = append(facts,
			fmt.Sprintf("NodePool %s: consolidationPolicy %s, consolidateAfter %s", nodePool.Name, d.ConsolidationPolicy, after))
		if first := nodePool.StatusConditions(status.WithObservedOnly()).Get(v1alpha1.TerminateFirstCondition); first.IsTrue() {
			facts = append(facts, fmt.Sprintf("NodePool %s: %s", nodePool.Name, first.Message))
		}
	}
	return facts
}

// olderImage reports that a node isn't replaced for the nodes' version because its template's image is older; "" if that isn't so.
func (s *Simulation) olderImage(node *state.StateNode) string {
	ref := node.NodeClaim.Spec.NodeClassRef
	if ref == nil || node.Node == nil {
		return ""
	}
	kubelet, _, _ := strings.Cut(strings.TrimPrefix(node.Node.Status.NodeInfo.KubeletVersion, "v"), "+")
	class := named[*v1alpha1.ClusterAPINodeClass](s.Guest, ref.Name)
	if class == nil {
		return ""
	}
	for _, template := range class.Status.Templates {
		has, _, _ := strings.Cut(template.Version, "+")
		if template.Image == v1alpha1.ImageOlder && template.InstanceType == node.Labels()[corev1.LabelInstanceTypeStable] && has == kubelet {
			return fmt.Sprintf("the image of %s has %s, and nodes of node class %s get %s; a replacement would boot the same image until a "+
				"template has one with %s",
				template.Source, template.Version, class.Name, class.Status.Version, class.Status.Version)
		}
	}
	return ""
}

// hurried is a clock on which no time passes while Karpenter core waits before it validates a command: a snapshot doesn't change.
type hurried struct{ clock.Clock }

// After implements clock.Clock.
func (h hurried) After(time.Duration) <-chan time.Time {
	now := make(chan time.Time, 1)
	now <- h.Now()
	return now
}
