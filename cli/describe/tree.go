// SPDX-License-Identifier: Apache-2.0

package describe

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/cli/check"
	"github.com/autonode-io/autonode/cli/condition"
	"github.com/autonode-io/autonode/cli/explain"
	"github.com/autonode-io/autonode/cli/printer"
	"github.com/autonode-io/autonode/internal/clusterstatus"
	"github.com/autonode-io/autonode/internal/message"
)

// maxMessage is the longest message of a condition that is shown, in bytes.
const maxMessage = 240

// item is a line of the tree, with those below it. Scripts may rely on its JSON.
type item struct {
	// Text is the object's kind and name, and, after two spaces each, what is known of it.
	Text string `json:"text"`
	// Wrong reports what is wrong with it; empty if nothing is.
	Wrong string  `json:"wrong,omitempty"`
	Below []*item `json:"below,omitempty"`
	// Problems are objects that couldn't be read. The root has them.
	Problems []string `json:"problems,omitempty"`
}

func newItem(format string, args ...any) *item {
	return &item{Text: message.Line(fmt.Sprintf(format, args...))}
}

// add adds a line below.
func (i *item) add(below *item) *item {
	i.Below = append(i.Below, below)
	return below
}

// condition reports that a condition has the wrong status, if nothing else is reported.
func (i *item) condition(kind, reason, text string) {
	if i.Wrong == "" {
		i.Wrong = message.Cut(message.Line(fmt.Sprintf("%s (%s): %s", kind, reason, text)), maxMessage)
	}
}

// conditions reports the first one that is False, but for Ready, which repeats it.
func (i *item) conditions(all []status.Condition) {
	for _, c := range all {
		if c.Status == metav1.ConditionFalse && c.Type != status.ConditionReady {
			i.condition(c.Type, c.Reason, c.Message)
		}
	}
}

// tree makes the tree, from the HostedCluster to nodes.
func (v *view) tree() *item {
	root := v.hostedClusterItem()
	root.add(v.clusterItem())
	if item := v.componentItem(); item != nil {
		root.add(item)
	}
	slices.SortFunc(v.classes, func(a, b v1alpha1.ClusterAPINodeClass) int { return strings.Compare(a.Name, b.Name) })
	for i := range v.classes {
		root.add(classItem(&v.classes[i]))
	}
	machines := map[string]*clusterv1.Machine{} // by the label of their NodeClaim
	for i := range v.machines {
		machines[v.machines[i].Labels[v1alpha1.NodeClaimLabel]] = &v.machines[i]
	}
	slices.SortFunc(v.nodeClaims, func(a, b karpv1.NodeClaim) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(v.pools, func(a, b karpv1.NodePool) int { return strings.Compare(a.Name, b.Name) })
	known := map[string]bool{}
	for i := range v.pools {
		known[v.pools[i].Name] = true
		pool := root.add(poolItem(&v.pools[i]))
		v.claims(pool, v.pools[i].Name, machines)
	}
	for i := range v.nodeClaims { // of NodePools that are gone
		if name := v.nodeClaims[i].Labels[karpv1.NodePoolLabelKey]; !known[name] {
			known[name] = true
			v.claims(root.add(newItem("NodePool %s  deleted", name)), name, machines)
		}
	}
	for _, machine := range slices.SortedFunc(maps.Values(machines),
		func(a, b *clusterv1.Machine) int { return strings.Compare(a.Name, b.Name) }) {
		item := root.add(machineItem(machine))
		if v.guest && machine.DeletionTimestamp.IsZero() {
			item.Text += "  without NodeClaim"
		}
	}
	if v.oldest != nil {
		root.add(v.pendingItem())
	}
	return root
}

func (v *view) hostedClusterItem() *item {
	hc := v.hostedCluster
	state, nodes := "AutoNode is off", ""
	if hc.Spec.AutoNode != nil {
		state = "AutoNode is on"
	}
	if counts := hc.Status.AutoNode; counts != nil {
		state = cmp.Or(string(counts.State), state)
		if counts.NodeCount != nil {
			nodes = "  " + english.Plural(int(*counts.NodeCount), "node", "")
		}
	}
	release := "release not resolved"
	if version := hc.Status.Version; version != nil && version.Desired != nil {
		release = "release " + version.Desired.Version
		if version.Desired.Source == v1beta1.ReleaseSourceDefault {
			release += ", the operator's default"
		}
	}
	root := newItem("HostedCluster %s  %s  %s%s", client.ObjectKeyFromObject(hc), state, release, nodes)
	for _, c := range condition.WrongOfHostedCluster(hc) {
		root.condition(c.Type, c.Reason, c.Message)
	}
	if counts := hc.Status.AutoNode; counts != nil && counts.State == v1beta1.AutoNodeStatePaused {
		root.condition(v1beta1.AutoNodeEnabled, v1beta1.PausedReason, counts.Message)
	}
	return root
}

// pendingItem has the answer for the oldest pod that waits for a node.
func (v *view) pendingItem() *item {
	key := client.ObjectKeyFromObject(v.oldest)
	item := newItem("%s  the oldest is %s, %s old", english.Plural(v.pending, "pod is pending", "pods are pending"), key,
		duration.HumanDuration(time.Since(v.oldest.CreationTimestamp.Time)))
	item.Wrong = fmt.Sprintf("see `autonode why pod %s`", key)
	if v.answer != nil {
		item.Wrong = v.answer.Summary
		if v.answer.Decision == explain.Unschedulable && len(v.answer.NodePools) > 0 {
			item.Wrong += fmt.Sprintf("; NodePool %s: %s", v.answer.NodePools[0].Name, v.answer.NodePools[0].Reason)
		}
	}
	item.Wrong = message.Cut(message.Line(item.Wrong), maxMessage)
	return item
}

func (v *view) clusterItem() *item {
	key := client.ObjectKey{Namespace: v.hostedCluster.ControlPlaneNamespace(), Name: v.hostedCluster.ClusterName()}
	if v.cluster == nil {
		item := newItem("Cluster %s", key)
		item.Wrong = "doesn't exist; create it, or correct spec.infraID and spec.controlPlaneNamespace of the HostedCluster"
		return item
	}
	item := newItem("Cluster %s  %s", key, cmp.Or(v.cluster.Status.Phase, "no phase yet"))
	item.faults(v.clusterFaults.Checks)
	return item
}

// faults reports the first check that isn't OK, if nothing else is reported.
func (i *item) faults(checks []check.Check) {
	for _, c := range checks {
		if c.Result != check.OK && i.Wrong == "" {
			i.Wrong = message.Cut(message.Line(fmt.Sprintf("%s: %s; %s", c.Subject, c.Message, c.Fix)), maxMessage)
		}
	}
}

func (v *view) componentItem() *item {
	c := v.component
	if c == nil {
		if v.hostedCluster.Spec.AutoNode == nil {
			return nil
		}
		return newItem("Karpenter  not installed yet")
	}
	item := newItem("Karpenter %s/%s  release %s", c.Namespace, c.Name, cmp.Or(c.Status.Version, "none yet"))
	for _, wrong := range condition.WrongOfComponent(c) {
		item.condition(wrong.Type, wrong.Reason, wrong.Message)
	}
	item.faults(v.karpenterFaults.Checks)
	if c.Status.ImageOverride != "" {
		item.Text += message.Line("  image overridden: " + c.Status.ImageOverride)
	}
	return item
}

func classItem(class *v1alpha1.ClusterAPINodeClass) *item {
	count := int(ptr.Deref(class.Status.TemplateCount, 0))
	item := newItem("ClusterAPINodeClass %s  %s  version %s", class.Name, english.Plural(count, "template", ""),
		cmp.Or(class.Status.Version, "not known"))
	item.conditions(class.Status.Conditions)
	unavailable := 0
	for i := range class.Status.Templates {
		t := &class.Status.Templates[i]
		if t.Unavailable != "" {
			unavailable++
			item.add(newItem("%s  %s  unavailable: %s", t.Source, t.InstanceType, t.Unavailable))
		}
	}
	if cheapest := class.Status.Cheapest; cheapest != "" && unavailable < len(class.Status.Templates) {
		item.Text += message.Line("  from " + cheapest)
	}
	return item
}

func poolItem(pool *karpv1.NodePool) *item {
	item := newItem("NodePool %s", pool.Name)
	if nodes, ok := pool.Status.Resources["nodes"]; ok {
		item.Text += "  " + english.Plural(int(nodes.Value()), "node", "")
	}
	item.conditions(pool.Status.Conditions)
	return item
}

// claims adds the NodeClaims of a NodePool, with their Machines, which it removes from the map, and their nodes.
func (v *view) claims(pool *item, name string, machines map[string]*clusterv1.Machine) {
	for i := range v.nodeClaims {
		claim := &v.nodeClaims[i]
		if claim.Labels[karpv1.NodePoolLabelKey] != name {
			continue
		}
		item := pool.add(claimItem(claim))
		label := v1alpha1.NodeClaimLabelValue(claim.Name)
		if machine := machines[label]; machine != nil {
			delete(machines, label)
			item.add(machineItem(machine))
		}
		if node := v.nodes[claim.Status.NodeName]; node != nil {
			item.add(nodeItem(node))
		}
	}
}

func claimItem(claim *karpv1.NodeClaim) *item {
	item := newItem("NodeClaim %s  %s", claim.Name, cmp.Or(claim.Labels[corev1.LabelInstanceTypeStable], "no instance type yet"))
	if !claim.DeletionTimestamp.IsZero() {
		item.Text += "  draining"
		return item
	}
	for _, step := range []struct{ condition, state string }{
		{karpv1.ConditionTypeLaunched, "launching"}, {karpv1.ConditionTypeRegistered, "waiting to join"},
		{karpv1.ConditionTypeInitialized, "initializing"},
	} {
		c := claim.StatusConditions().Get(step.condition)
		if c.IsTrue() {
			continue
		}
		item.Text += "  " + step.state
		if c != nil && (c.Status == metav1.ConditionFalse || c.Reason != "AwaitingReconciliation" && c.Message != "" &&
			c.Message != "object is awaiting reconciliation") {
			item.condition(c.Type, c.Reason, c.Message)
		}
		return item
	}
	item.Text += "  ready"
	if c := claim.StatusConditions().Get(karpv1.ConditionTypeDrifted); c.IsTrue() {
		item.Text += message.Line("  drifted: " + c.Reason)
	}
	return item
}

func machineItem(machine *clusterv1.Machine) *item {
	item := newItem("Machine %s/%s  %s", machine.Namespace, machine.Name, cmp.Or(machine.Status.Phase, "no phase yet"))
	for _, kind := range []string{clusterv1.InfrastructureReadyCondition, clusterv1.BootstrapConfigReadyCondition} {
		if c := meta.FindStatusCondition(machine.Status.Conditions, kind); c != nil && c.Status == metav1.ConditionFalse && c.Message != "" &&
			machine.DeletionTimestamp.IsZero() {
			item.condition(c.Type, c.Reason, c.Message)
		}
	}
	if clusterstatus.Hangs(machine, time.Now()) {
		item.Wrong = message.Cut(message.Line("hangs in deletion: "+cmp.Or(clusterstatus.Holds(machine), "no reason given")), maxMessage)
	}
	return item
}

func nodeItem(node *corev1.Node) *item {
	item := newItem("Node %s  %s", node.Name, node.Status.NodeInfo.KubeletVersion)
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			item.condition("Ready is "+string(c.Status), c.Reason, c.Message)
		}
	}
	return item
}

// print prints the tree in the format of --output.
func (v *view) print(to io.Writer, format string) error {
	root := v.tree()
	root.Problems = v.problems
	return printer.Print(to, format, root, func(to io.Writer) error { return v.text(to, root) }, root.names()...)
}

// name is the object's kind and name.
func (i *item) name() string {
	name, _, _ := strings.Cut(i.Text, "  ")
	return name
}

func (i *item) names() []string {
	names := []string{i.name()}
	for _, below := range i.Below {
		names = append(names, below.names()...)
	}
	return names
}

// text prints the tree, what couldn't be read, and the first thing that is wrong.
func (v *view) text(to io.Writer, root *item) error {
	root.print(to, "", "")
	for _, problem := range v.problems {
		printer.Line(to, problem)
	}
	if !v.guest {
		fmt.Fprintln(to, "The guest wasn't read: name it with --guest-kubeconfig or --guest-context to see NodePools, NodeClaims and nodes.")
	}
	wrong := root.first()
	if wrong == nil {
		rest := "."
		if !v.guest || len(v.problems) > 0 {
			rest = " in the objects above."
		}
		_, err := fmt.Fprintln(to, "No problems found"+rest)
		return err
	}
	prefix := "Wrong"
	if v.oldest != nil && wrong == root.Below[len(root.Below)-1] {
		prefix = "Waits"
	}
	printer.Printf(to, "%s: %s: %s\n", prefix, wrong.name(), wrong.Wrong)
	return nil
}

// print prints a line after one prefix, and those below it after another.
func (i *item) print(to io.Writer, first, others string) {
	mark, gap := " ", others
	if i.Wrong != "" {
		mark = "!"
	}
	printer.Printf(to, "%s %s%s\n", mark, first, i.Text)
	if len(i.Below) > 0 {
		gap += "│  "
	}
	if i.Wrong != "" {
		printer.Printf(to, "  %s   %s\n", gap, i.Wrong)
	}
	for n, below := range i.Below {
		if n == len(i.Below)-1 {
			below.print(to, others+"└─ ", others+"   ")
		} else {
			below.print(to, others+"├─ ", others+"│  ")
		}
	}
}

// first returns the first item with which something is wrong, nil for none. What a HostedCluster reports of something below it is below.
func (i *item) first() *item {
	for _, below := range i.Below {
		if found := below.first(); found != nil && (i.Wrong == "" || strings.HasPrefix(i.Wrong, v1beta1.NodeClassReady) ||
			strings.HasPrefix(i.Wrong, v1beta1.OfferingsAvailable)) {
			return found
		}
	}
	if i.Wrong != "" {
		return i
	}
	return nil
}
