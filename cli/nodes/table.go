// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/clock"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"
	podutils "sigs.k8s.io/karpenter/pkg/utils/pod"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/cli/printer"
	"github.com/autonode-io/autonode/internal/lenient"
	"github.com/autonode-io/autonode/internal/message"
)

// view is what a table of nodes is made of.
type view struct {
	clock      clock.Clock
	nodeClaims karpv1.NodeClaimList
	nodes      corev1.NodeList
	pods       corev1.PodList
	budgets    policyv1.PodDisruptionBudgetList
	events     corev1.EventList
}

// listed are the nodes as --output json and yaml print them. Scripts may rely on the fields.
type listed struct {
	Nodes []*row `json:"nodes"`
	// PendingPods have no node.
	PendingPods int `json:"pendingPods"`
}

// row is a node, a NodeClaim without one, or both.
type row struct {
	Name         string `json:"name"`
	NodePool     string `json:"nodePool,omitempty"`
	InstanceType string `json:"instanceType,omitempty"`
	Zone         string `json:"zone,omitempty"`
	CapacityType string `json:"capacityType,omitempty"`
	// PricePerHour in US dollars.
	PricePerHour number `json:"pricePerHour,omitzero"`
	// CPU and Memory that pods request, as fractions of what is allocatable.
	CPU    number `json:"requestedCPU,omitzero"`
	Memory number `json:"requestedMemory,omitzero"`
	// Pods without those of DaemonSets.
	Pods    int         `json:"pods"`
	Created metav1.Time `json:"created"`
	// State reports why it isn't ready, goes, or stays. Empty if there is nothing to say.
	State string `json:"state,omitempty"`

	// What the fractions are of, in thousandths of a vCPU and in bytes.
	requested, allocatable usage
	age                    string
}

// number is NaN if it isn't known, and JSON leaves it out then.
type number float64

// IsZero is for JSON.
func (n number) IsZero() bool { return math.IsNaN(float64(n)) }

var unknown = number(math.NaN())

// usage of the resources that the table shows, in thousandths of a vCPU and in bytes.
type usage struct{ cpu, memory float64 }

func (u *usage) add(list corev1.ResourceList) {
	u.cpu += float64(list.Cpu().MilliValue())
	u.memory += list.Memory().AsApproximateFloat64()
}

// maxState is the longest state that is shown, in bytes: Karpenter's reasons may be as long as an event.
const maxState = 160

// rows of one NodePool, or of all if it is empty.
func (v *view) rows(nodePool string) []*row {
	nodes := make(map[string]*corev1.Node, len(v.nodes.Items))
	for i := range v.nodes.Items {
		nodes[v.nodes.Items[i].Name] = &v.nodes.Items[i]
	}
	pods := map[string][]*corev1.Pod{}
	for i := range v.pods.Items {
		if pod := &v.pods.Items[i]; nodes[pod.Spec.NodeName] != nil && !podutils.IsTerminal(pod) {
			pods[pod.Spec.NodeName] = append(pods[pod.Spec.NodeName], pod)
		}
	}
	reasons, budgets := v.reasons(), v.exhausted()
	rows := []*row{}
	for i := range v.nodeClaims.Items {
		claim := &v.nodeClaims.Items[i]
		node := nodes[claim.Status.NodeName]
		delete(nodes, claim.Status.NodeName)
		rows = append(rows, v.row(claim, node, pods[claim.Status.NodeName], budgets, reasons[claim.UID]))
	}
	for _, node := range nodes { // not Karpenter's
		rows = append(rows, v.row(nil, node, pods[node.Name], budgets, nil))
	}
	if nodePool != "" {
		rows = slices.DeleteFunc(rows, func(r *row) bool { return r.NodePool != nodePool })
	}
	return rows
}

// reasons are the newest events that say why Karpenter keeps a node, by the UID of its NodeClaim.
func (v *view) reasons() map[types.UID]*corev1.Event {
	newest := map[types.UID]*corev1.Event{}
	for i := range v.events.Items {
		event := &v.events.Items[i]
		if event.Reason != events.Unconsolidatable && event.Reason != events.DisruptionBlocked {
			continue
		}
		if before := newest[event.InvolvedObject.UID]; before == nil || before.LastTimestamp.Before(&event.LastTimestamp) {
			newest[event.InvolvedObject.UID] = event
		}
	}
	return newest
}

// maxBudgets bounds the exhausted budgets of a namespace that each pod is compared with.
const maxBudgets = 100

// exhaustedBudget is a PodDisruptionBudget that allows no eviction now.
type exhaustedBudget struct {
	name     string
	selector labels.Selector
}

// exhausted are those, by namespace.
func (v *view) exhausted() map[string][]exhaustedBudget {
	found := map[string][]exhaustedBudget{}
	for i := range v.budgets.Items {
		budget := &v.budgets.Items[i]
		if budget.Status.DisruptionsAllowed > 0 || len(found[budget.Namespace]) == maxBudgets {
			continue
		}
		// The API server has validated it.
		if selector, err := lenient.Selector(budget.Spec.Selector); err == nil {
			found[budget.Namespace] = append(found[budget.Namespace], exhaustedBudget{budget.Name, selector})
		}
	}
	return found
}

// row of a NodeClaim, a node or both.
func (v *view) row(claim *karpv1.NodeClaim, node *corev1.Node, pods []*corev1.Pod, budgets map[string][]exhaustedBudget,
	reason *corev1.Event) *row {
	r := &row{PricePerHour: unknown, CPU: unknown, Memory: unknown}
	var label map[string]string
	if claim != nil {
		r.Name, r.Created, label = claim.Name, claim.CreationTimestamp, claim.Labels
	}
	if node != nil {
		r.Name, label = node.Name, node.Labels
		if claim == nil {
			r.Created = node.CreationTimestamp
		}
		if price, err := strconv.ParseFloat(node.Labels[v1alpha1.NodePriceLabel], 64); err == nil && price >= 0 && !math.IsInf(price, 0) {
			r.PricePerHour = number(price)
		}
		r.requested.add(resources.RequestsForPods(pods...))
		r.allocatable.add(node.Status.Allocatable)
		r.CPU, r.Memory = fraction(r.requested.cpu, r.allocatable.cpu), fraction(r.requested.memory, r.allocatable.memory)
		for _, pod := range pods {
			if !podutils.IsOwnedByDaemonSet(pod) && !podutils.IsOwnedByNode(pod) {
				r.Pods++
			}
		}
	}
	r.NodePool, r.InstanceType = label[karpv1.NodePoolLabelKey], label[corev1.LabelInstanceTypeStable]
	r.Zone, r.CapacityType = label[corev1.LabelTopologyZone], label[karpv1.CapacityTypeLabelKey]
	r.age = duration.HumanDuration(v.clock.Since(r.Created.Time))
	if claim == nil {
		r.State = "not Karpenter's"
		return r
	}
	blocker := v.blocker(node, pods, budgets)
	r.State = message.Cut(strings.Join(strings.Fields(v.state(claim, node, r, blocker, reason)), " "), maxState)
	return r
}

func fraction(part, whole float64) number {
	if whole <= 0 {
		return unknown
	}
	return number(part / whole)
}

// state reports what happens to a NodeClaim now: it comes, goes, is to go, or stays.
func (v *view) state(claim *karpv1.NodeClaim, node *corev1.Node, r *row, blocker string, reason *corev1.Event) string {
	withBlocker := func(state string) string {
		if blocker != "" {
			state += "; kept by " + blocker
		}
		return state
	}
	if !claim.DeletionTimestamp.IsZero() || node != nil && !node.DeletionTimestamp.IsZero() {
		state := "draining"
		if why := claim.StatusConditions().Get(karpv1.ConditionTypeDisruptionReason); why != nil && why.Reason != "" {
			state += " (" + why.Reason + ")"
		}
		if node == nil || r.Pods == 0 {
			return "terminating"
		}
		return withBlocker(fmt.Sprintf("%s, %s left", state, english.Plural(r.Pods, "pod", "")))
	}
	for _, step := range []struct{ condition, state string }{
		{karpv1.ConditionTypeLaunched, "launching"}, {karpv1.ConditionTypeRegistered, "waiting to join"},
		{karpv1.ConditionTypeInitialized, "initializing"},
	} {
		if c := claim.StatusConditions().Get(step.condition); !c.IsTrue() {
			if c != nil && c.Message != "" && c.Message != "object is awaiting reconciliation" {
				return step.state + ": " + c.Message
			}
			return step.state
		}
	}
	if c := claim.StatusConditions().Get(karpv1.ConditionTypeDrifted); c.IsTrue() {
		return withBlocker("drifted (" + c.Reason + ")")
	}
	switch {
	case blocker != "":
		return "kept by " + blocker
	case r.Pods == 0:
		return "empty"
	case reason != nil:
		return "stays: " + reason.Message
	case claim.StatusConditions().Get(karpv1.ConditionTypeConsolidatable).IsTrue():
		return "may be consolidated"
	}
	return ""
}

// blocker names what keeps Karpenter from disrupting a node.
func (v *view) blocker(node *corev1.Node, pods []*corev1.Pod, budgets map[string][]exhaustedBudget) string {
	if node == nil {
		return ""
	}
	if node.Annotations[karpv1.DoNotDisruptAnnotationKey] == "true" {
		return "its annotation " + karpv1.DoNotDisruptAnnotationKey
	}
	var protected, budgeted []string
	for _, pod := range pods {
		if podutils.IsDoNotDisruptActive(pod, v.clock, nil) {
			protected = append(protected, pod.Namespace+"/"+pod.Name)
		}
		for _, budget := range budgets[pod.Namespace] {
			if budget.selector.Matches(labels.Set(pod.Labels)) {
				budgeted = append(budgeted, pod.Namespace+"/"+budget.name)
			}
		}
	}
	switch {
	case len(protected) > 0:
		return fmt.Sprintf("pod %s (%s)", andMore(protected), karpv1.DoNotDisruptAnnotationKey)
	case len(budgeted) > 0:
		return "PodDisruptionBudget " + andMore(budgeted)
	}
	return ""
}

// andMore is the first name, and how many others there are.
func andMore(names []string) string {
	slices.Sort(names)
	return message.List(slices.Compact(names), 1, ", ")
}

// pending counts the pods that no node has, and that aren't being deleted.
func (v *view) pending() (n int) {
	for i := range v.pods.Items {
		if pod := &v.pods.Items[i]; pod.Spec.NodeName == "" && pod.DeletionTimestamp.IsZero() && !podutils.IsTerminal(pod) {
			n++
		}
	}
	return n
}

// sorted returns rows in an order, those that are equal in it by their names.
func sorted(rows []*row, order func(a, b *row) int) []*row {
	slices.SortFunc(rows, func(a, b *row) int { return cmp.Or(order(a, b), strings.Compare(a.Name, b.Name)) })
	return rows
}

// printTable prints a table, and a line about all rows and the pods that no node has.
func printTable(to io.Writer, rows []*row, pending int) error {
	if len(rows) == 0 {
		text := "no nodes; Karpenter launches them for pending pods"
		if pending > 0 {
			text = fmt.Sprintf("no nodes, and %s pending; `autonode why pod NAME` explains one", english.Plural(pending, "pod", ""))
		}
		_, err := fmt.Fprintln(to, text)
		return err
	}
	table := printer.NewTable(to, "NODE", "NODEPOOL", "TYPE", "ZONE", "CAPACITY", "PRICE/H", "CPU", "MEMORY", "PODS", "AGE", "STATE")
	var price number
	var unpriced, pods int
	var requested, allocatable usage
	for _, r := range rows {
		if r.PricePerHour.IsZero() {
			unpriced++
		} else {
			price += r.PricePerHour
		}
		pods += r.Pods
		requested.cpu, requested.memory = requested.cpu+r.requested.cpu, requested.memory+r.requested.memory
		allocatable.cpu, allocatable.memory = allocatable.cpu+r.allocatable.cpu, allocatable.memory+r.allocatable.memory
		table.Row(r.Name, r.NodePool, r.InstanceType, r.Zone, r.CapacityType, printer.Dollars(float64(r.PricePerHour)), percent(r.CPU),
			percent(r.Memory), r.Pods, r.age, r.State)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	summary := fmt.Sprintf("%s, %s an hour", english.Plural(len(rows), "node", ""), printer.Dollars(float64(price)))
	if unpriced > 0 {
		summary += fmt.Sprintf(" and %d without a price", unpriced)
	}
	if pending > 0 {
		summary += fmt.Sprintf("; %s pending", english.Plural(pending, "pod", ""))
	}
	summary += fmt.Sprintf("; %s; requested: CPU %s, memory %s", english.Plural(pods, "pod", ""),
		percent(fraction(requested.cpu, allocatable.cpu)), percent(fraction(requested.memory, allocatable.memory)))
	_, err := fmt.Fprintln(to, message.Line(summary))
	return err
}

func percent(fraction number) string {
	if fraction.IsZero() {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", fraction*100)
}

// compareDescending sorts unknown numbers last, as cmp.Compare takes NaN for less than any number.
func compareDescending(a, b number) int { return cmp.Compare(b, a) }
