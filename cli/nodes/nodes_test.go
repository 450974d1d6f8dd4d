// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/cli/clitest"
	"github.com/autonode-io/autonode/cli/printer"
	"github.com/autonode-io/autonode/cli/printer/printertest"
)

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// viewOf has a clock at noon.
func viewOf(objects ...client.Object) *view {
	v := &view{clock: clocktesting.NewFakeClock(noon)}
	for _, object := range objects {
		switch o := object.(type) {
		case *karpv1.NodeClaim:
			v.nodeClaims.Items = append(v.nodeClaims.Items, *o)
		case *corev1.Node:
			v.nodes.Items = append(v.nodes.Items, *o)
		case *corev1.Pod:
			v.pods.Items = append(v.pods.Items, *o)
		case *policyv1.PodDisruptionBudget:
			v.budgets.Items = append(v.budgets.Items, *o)
		case *corev1.Event:
			v.events.Items = append(v.events.Items, *o)
		}
	}
	return v
}

// ready is a NodeClaim whose node has joined.
func ready(name string, change func(*karpv1.NodeClaim)) *karpv1.NodeClaim {
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(noon.Add(-3 * time.Hour)),
		Labels: map[string]string{karpv1.NodePoolLabelKey: "general", corev1.LabelInstanceTypeStable: "m5.large", karpv1.CapacityTypeLabelKey: "spot"},
	}}
	claim.Status.NodeName = name
	for _, step := range []string{karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized} {
		claim.StatusConditions().SetTrue(step)
	}
	if change != nil {
		change(claim)
	}
	return claim
}

func nodeOf(name, price string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(noon.Add(-2 * time.Hour)), Labels: map[string]string{
			karpv1.NodePoolLabelKey: "general", corev1.LabelInstanceTypeStable: "m5.large", corev1.LabelTopologyZone: "a",
			karpv1.CapacityTypeLabelKey: "spot", v1alpha1.NodePriceLabel: price,
		}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("8Gi")}},
	}
}

func podOn(node, name string, change func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "registry.example/c", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("2Gi")},
		}}}},
	}
	if change != nil {
		change(pod)
	}
	return pod
}

func TestNodeStates(t *testing.T) {
	deleting := func(claim *karpv1.NodeClaim) {
		claim.DeletionTimestamp = &metav1.Time{Time: noon}
		claim.StatusConditions().SetTrueWithReason(karpv1.ConditionTypeDisruptionReason, "Drifted", "Drifted")
	}
	protected := func(pod *corev1.Pod) {
		pod.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"}
	}
	event := func(reason, message string, at time.Duration) *corev1.Event {
		return &corev1.Event{InvolvedObject: corev1.ObjectReference{UID: "n"}, Reason: reason, Message: message, LastTimestamp: metav1.NewTime(noon.Add(at))}
	}
	node, pod := nodeOf("n", "0.1"), podOn("n", "web", nil)
	for name, test := range map[string]struct {
		objects []client.Object
		want    string
	}{
		"When a NodeClaim isn't launched, it should say why": {
			[]client.Object{ready("n", func(claim *karpv1.NodeClaim) {
				claim.Status.NodeName = ""
				claim.StatusConditions().SetUnknownWithReason(karpv1.ConditionTypeLaunched, "InsufficientCapacity", "no capacity\nin zone a")
			})}, "launching: no capacity in zone a",
		},
		"When a machine hasn't joined, it should say what it waits for": {
			[]client.Object{ready("n", func(claim *karpv1.NodeClaim) {
				claim.Status.NodeName = ""
				claim.StatusConditions().SetUnknown(karpv1.ConditionTypeRegistered)
			})}, "waiting to join",
		},
		"When a node drains, it should say why, how far it is, and what keeps it": {
			[]client.Object{ready("n", deleting), node, pod, podOn("n", "db", protected)},
			"draining (Drifted), 2 pods left; kept by pod default/db (karpenter.sh/do-not-disrupt)",
		},
		"When a node has drained, it should say so": {[]client.Object{ready("n", deleting), node}, "terminating"},
		"When a node has drifted, it should say how, and which budget keeps it": {
			[]client.Object{
				ready("n", func(claim *karpv1.NodeClaim) {
					claim.StatusConditions().SetTrueWithReason(karpv1.ConditionTypeDrifted, "TemplateDrifted", "TemplateDrifted")
				}), node, pod,
				&policyv1.PodDisruptionBudget{
					ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
					Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
				},
			}, "drifted (TemplateDrifted); kept by PodDisruptionBudget default/web",
		},
		"When a budget allows a disruption, it should not name it": {
			[]client.Object{ready("n", nil), node, pod, &policyv1.PodDisruptionBudget{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
				Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}}, Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1},
			}}, "",
		},
		"When a namespace has more budgets than a pod is compared with, it should not name those": {
			append(slices.Repeat([]client.Object{&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}}}, maxBudgets), ready("n", nil), node, pod,
				&policyv1.PodDisruptionBudget{
					ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
					Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
				}), "",
		},
		"When several pods keep a node, it should name one and count the others": {
			[]client.Object{ready("n", nil), node, podOn("n", "a", protected), podOn("n", "b", protected)},
			"kept by pod default/a and 1 more (karpenter.sh/do-not-disrupt)",
		},
		"When the node itself is annotated, it should say so": {
			[]client.Object{ready("n", nil), func() *corev1.Node {
				node := nodeOf("n", "0.1")
				node.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"}
				return node
			}(), pod}, "kept by its annotation karpenter.sh/do-not-disrupt",
		},
		"When a node has pods of DaemonSets alone, it should be empty": {
			[]client.Object{ready("n", nil), node, podOn("n", "agent", func(pod *corev1.Pod) {
				pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "agent"}}
			})}, "empty",
		},
		"When Karpenter has said why it keeps a node, it should repeat the last": {
			[]client.Object{
				ready("n", nil), node, pod, event("Unconsolidatable", "Can't replace with a cheaper node", -time.Minute),
				event("DisruptionBlocked", "Pod is pending", -time.Hour), event("Evicted", "something else", 0),
			}, "stays: Can't replace with a cheaper node",
		},
		"When Karpenter considers a node for consolidation, it should say so": {
			[]client.Object{ready("n", func(claim *karpv1.NodeClaim) {
				claim.StatusConditions().SetTrue(karpv1.ConditionTypeConsolidatable)
			}), node, pod},
			"may be consolidated",
		},
		"When a node isn't Karpenter's, it should say so":     {[]client.Object{node, pod}, "not Karpenter's"},
		"When there is nothing to say, it should say nothing": {[]client.Object{ready("n", nil), node, pod}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			rows := viewOf(test.objects...).rows("")
			g.Expect(rows).To(HaveLen(1))
			g.Expect(rows[0].State).To(Equal(test.want))
		})
	}
	t.Run("When a message is long, it should be cut", func(t *testing.T) {
		g := NewWithT(t)
		rows := viewOf(ready("n", nil), node, pod, event("Unconsolidatable", strings.Repeat("x", 4096), 0)).rows("")
		g.Expect(len(rows[0].State)).To(BeNumerically("<=", maxState))
	})
}

func TestNodesTable(t *testing.T) {
	other := ready("other", func(claim *karpv1.NodeClaim) {
		claim.Labels = map[string]string{karpv1.NodePoolLabelKey: "batch"}
		claim.Status.NodeName = ""
		claim.StatusConditions().SetUnknown(karpv1.ConditionTypeLaunched)
		claim.CreationTimestamp = metav1.NewTime(noon.Add(-10 * time.Second))
	})
	v := viewOf(
		ready("cheap", nil), nodeOf("cheap", "0.05"), podOn("cheap", "a", nil),
		ready("dear", nil), nodeOf("dear", "0.4"), podOn("dear", "b", nil), podOn("dear", "c", nil),
		podOn("dear", "done", func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded }),
		other, podOn("", "pending", nil), nodeOf("alien", "NaN"),
	)
	for want, pending := range map[string]int{"no nodes; Karpenter launches them for pending pods": 0, "no nodes, and 2 pods pending; `autonode why pod NAME` explains one": 2} {
		t.Run("When there are no nodes, it should say so, and what to do", func(t *testing.T) {
			var out bytes.Buffer
			NewWithT(t).Expect(printTable(&out, nil, pending)).To(Succeed())
			NewWithT(t).Expect(out.String()).To(Equal(want + "\n"))
		})
	}
	for _, test := range []struct{ name, nodePool, order, want string }{
		{"When there are nodes of every sort, it should show the dearest first and sum them up", "", "price", `
NODE   NODEPOOL  TYPE      ZONE  CAPACITY  PRICE/H  CPU  MEMORY  PODS  AGE   STATE
dear   general   m5.large  a     spot      $0.400   50%  50%     2     3h    
cheap  general   m5.large  a     spot      $0.050   25%  25%     1     3h    
alien  general   m5.large  a     spot      -        0%   0%      0     120m  not Karpenter's
other  batch     -         -     -         -        -    -       0     10s   launching
4 nodes, $0.450 an hour and 2 without a price; 1 pod pending; 3 pods; requested: CPU 25%, memory 25%
`},
		{"When a NodePool is named, it should show its nodes alone", "batch", "name", `
NODE   NODEPOOL  TYPE  ZONE  CAPACITY  PRICE/H  CPU  MEMORY  PODS  AGE  STATE
other  batch     -     -     -         -        -    -       0     10s  launching
1 node, $0.000 an hour and 1 without a price; 1 pod pending; 0 pods; requested: CPU -, memory -
`},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out bytes.Buffer
			NewWithT(t).Expect(printTable(&out, sorted(v.rows(test.nodePool), orders[test.order]), v.pending())).To(Succeed())
			if diff := cmp.Diff(strings.TrimPrefix(test.want, "\n"), out.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestPages(t *testing.T) {
	// joined is a node that stays, with pods that are alike.
	joined := func(name, nodePool, instanceType, zone, capacityType, price string, age time.Duration, room corev1.ResourceList, pods int, request corev1.ResourceList,
		stays string,
	) []client.Object {
		node := nodeOf(name, price)
		node.Status.Allocatable = room
		node.Labels[karpv1.NodePoolLabelKey], node.Labels[corev1.LabelInstanceTypeStable] = nodePool, instanceType
		node.Labels[corev1.LabelTopologyZone], node.Labels[karpv1.CapacityTypeLabelKey] = zone, capacityType
		objects := []client.Object{node, ready(name, func(claim *karpv1.NodeClaim) { claim.CreationTimestamp = metav1.NewTime(noon.Add(-age)) }),
			&corev1.Event{InvolvedObject: corev1.ObjectReference{UID: types.UID(name)}, Reason: "Unconsolidatable", Message: stays}}
		for range pods {
			objects = append(objects, podOn(name, "web", func(pod *corev1.Pod) { pod.Spec.Containers[0].Resources.Requests = request }))
		}
		return objects
	}
	resources := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	const notEmpty = `NodePool "general" has consolidation policy WhenEmpty, but node is not empty`
	const notCheaper = "Can't replace with a cheaper node"
	general := func(name, zone string) []client.Object {
		return joined(name, "general", "c8-xlarge", zone, "spot", "0.083", 25*time.Second, resources("8", "32Gi"), 15, resources("520m", "512Mi"), notEmpty)
	}
	shared := func(name, capacityType, price string, age time.Duration) []client.Object {
		return joined(name, "shared", "k4", "a", capacityType, price, age, resources("4", "16Gi"), 1, resources("3", "128Mi"), notCheaper)
	}
	for _, test := range []struct {
		page, command, order string
		objects              []client.Object
	}{
		{"README.md", "autonode nodes", "name", slices.Concat(general("pp7nnllz-general-f6zls", "b"), general("pp7nnllz-general-rddcj", "c"))},
		{"docs/reference/cli/nodes.md", "autonode nodes --sort-by price", "price",
			slices.Concat(shared("shared-bpw4b", "on-demand", "0.139", 93*time.Second), shared("shared-g2dvj", "reserved", "0.01", 103*time.Second))},
	} {
		t.Run("When "+test.page+" shows nodes, it should show what the command prints", func(t *testing.T) {
			var out bytes.Buffer
			v := viewOf(test.objects...)
			NewWithT(t).Expect(printTable(&out, sorted(v.rows(""), orders[test.order]), v.pending())).To(Succeed())
			clitest.Shown(t, test.page, test.command, out.String())
		})
	}
}

func TestNodesOutput(t *testing.T) {
	t.Run("When a script requests nodes, it should get fields, without those that aren't known", func(t *testing.T) {
		waiting := ready("waiting", func(claim *karpv1.NodeClaim) {
			claim.Status.NodeName = ""
			claim.StatusConditions().SetUnknown(karpv1.ConditionTypeRegistered)
		})
		v := viewOf(ready("n", nil), nodeOf("n", "0.05"), podOn("n", "a", nil), waiting, podOn("", "pending", nil))
		var out bytes.Buffer
		NewWithT(t).Expect(printer.Encode(&out, "yaml", listed{sorted(v.rows(""), orders["name"]), v.pending()})).To(Succeed())
		want := `nodes:
- capacityType: spot
  created: "2026-11-23T09:00:00Z"
  instanceType: m5.large
  name: "n"
  nodePool: general
  pods: 1
  pricePerHour: 0.05
  requestedCPU: 0.25
  requestedMemory: 0.25
  zone: a
- capacityType: spot
  created: "2026-11-23T09:00:00Z"
  instanceType: m5.large
  name: waiting
  nodePool: general
  pods: 0
  state: waiting to join
pendingPods: 1
`
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// withoutKarpenter has no CRDs.
type withoutKarpenter struct{ client.Reader }

func (withoutKarpenter) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return &meta.NoKindMatchError{}
}

func TestNoKarpenter(t *testing.T) {
	t.Run("When a cluster has no NodeClaims, it should say what to do", func(t *testing.T) {
		_, err := read(t.Context(), withoutKarpenter{}, clocktesting.NewFakeClock(noon))
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring("choose another with --context or --kubeconfig")))
	})
}

func TestHostileOutput(t *testing.T) {
	const hostile = printertest.Hostile
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{corev1.LabelTopologyZone: hostile}}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n"}, Spec: corev1.PodSpec{NodeName: "a"}}
	blocked := &corev1.Event{InvolvedObject: corev1.ObjectReference{UID: "a"}, Reason: events.Unconsolidatable, Message: hostile}
	waiting := ready("b", func(c *karpv1.NodeClaim) {
		c.Status.NodeName, c.Labels[karpv1.NodePoolLabelKey], c.Labels[corev1.LabelInstanceTypeStable] = "", hostile, hostile
		c.StatusConditions().SetFalse(karpv1.ConditionTypeLaunched, "X", hostile)
	})
	waiting.UID = types.UID("b")
	printertest.Harmless(t, "nodes", func(out io.Writer) error {
		return printTable(out, sorted(viewOf(ready("a", nil), node, pod, blocked, waiting).rows(""), orders["name"]), 0)
	})
	for _, format := range []string{"json", "yaml"} {
		printertest.Harmless(t, "nodes in "+format, func(out io.Writer) error {
			return printer.Encode(out, format, listed{sorted(viewOf(ready("a", nil), node, pod, blocked, waiting).rows(""), orders["name"]), 0})
		})
	}
}
