// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/cli/explain"
)

func TestNode(t *testing.T) {
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart"}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}},
	}
	protected := func(p *corev1.Pod) {
		on("n")(p)
		p.Annotations = map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"}
	}
	balanced := func(p *karpv1.NodePool) { p.Spec.Disruption.ConsolidationPolicy = karpv1.ConsolidationPolicyBalanced }
	base := []client.Object{nodeClass(nil), nodePool("general", nil)}
	with := func(objects ...client.Object) []client.Object { return slices.Concat(base, objects) }
	for name, test := range map[string]struct {
		objects  []client.Object
		decision explain.Decision
		summary  string
		blocking []string
	}{
		"When a node is empty, it should say that it goes": {
			with(machine("n", "general", "medium", "8", nil)...),
			explain.Disrupted, "Node n can be disrupted now (empty): it would be removed, its pods fit on other nodes, which saves $0.200 an hour", nil,
		},
		"When a smaller instance type has room, it should say what replaces it": {
			with(append(machine("n", "general", "medium", "8", nil), pod("a", "1", on("n")))...),
			explain.Disrupted, "Node n can be disrupted now (consolidation): it would be replaced by small at $0.020 an hour, which saves $0.180 an hour", nil,
		},
		"When nothing cheaper has room, it should repeat what Karpenter reports": {
			with(append(machine("n", "general", "medium", "8", nil), pod("a", "6", on("n")))...),
			explain.Stays, "Node n stays: Can't replace with a cheaper node", nil,
		},
		"When pods and budgets keep it, it should name all": {
			with(append(machine("n", "general", "medium", "8", nil), pod("a", "1", protected), pod("b", "1", on("n")), budget)...),
			explain.Stays, `Node n stays: Pod has "karpenter.sh/do-not-disrupt" annotation (Pod=shop/a)`, []string{
				"pod shop/a has annotation karpenter.sh/do-not-disrupt", "pod shop/b: PodDisruptionBudget shop/cart allows no eviction now",
			},
		},
		"When its pods changed a moment ago, it should say how long it waits": {
			with(append(machine("n", "general", "medium", "8", func(_ *corev1.Node, claim *karpv1.NodeClaim) {
				claim.StatusConditions().SetUnknown(karpv1.ConditionTypeConsolidatable)
				claim.Status.LastPodEventTime = metav1.NewTime(noon.Add(-10 * time.Second))
			}), pod("a", "1", on("n")))...),
			explain.Stays, "Node n stays: the NodeClaim isn't Consolidatable yet: consolidateAfter of NodePool general is 30s, and its pods changed 10s ago; 20s left", nil,
		},
		"When the NodePool's budget is used up, it should say so": {
			append([]client.Object{nodeClass(nil), nodePool("general", func(p *karpv1.NodePool) { p.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "0"}} })},
				append(machine("n", "general", "medium", "8", nil), pod("a", "1", on("n")))...),
			explain.Stays, "Node n stays: the budgets of NodePool general allow no disruption for reason Underutilized now; nodes that aren't Ready or are being removed count against them", nil,
		},
		"When Balanced finds that too little is saved, it should say how much": {
			append(slices.Concat([]client.Object{nodeClass(nil), nodePool("general", balanced), pod("m", "7", on("m"))},
				machine("n", "general", "medium", "8", nil), machine("m", "general", "large", "8", nil)),
				pod("a", "0.5", on("n")), pod("b", "0.5", on("n")), pod("c", "0.5", on("n"))),
			explain.Stays, "Node n stays: consolidationPolicy Balanced of NodePool general keeps it: it would be replaced by small at $0.020 an hour, which saves $0.180 an hour, " +
				"18.0% of the NodePool's cost, and that is less than half its share of the NodePool's disruption cost, 66.7%", nil,
		},
		"When Balanced finds that enough is saved, it should say what replaces it": {
			append([]client.Object{nodeClass(nil), nodePool("general", balanced)}, append(machine("n", "general", "medium", "8", nil), pod("a", "1", on("n")))...),
			explain.Disrupted, "Node n can be disrupted now (consolidation): it would be replaced by small at $0.020 an hour, which saves $0.180 an hour", nil,
		},
		"When it is drifted, it should say what replaces it": {
			with(append(machine("n", "general", "medium", "8", func(_ *corev1.Node, claim *karpv1.NodeClaim) {
				claim.StatusConditions().SetTrueWithReason(karpv1.ConditionTypeDrifted, "NodePoolDrifted", "NodePoolDrifted")
			}), pod("a", "6", on("n")))...),
			explain.Disrupted, "Node n can be disrupted now (drift): it would be replaced by medium at $0.200 an hour", nil,
		},
		"When it is being removed, it should count the pods left": {
			with(append(machine("n", "general", "medium", "8", func(_ *corev1.Node, claim *karpv1.NodeClaim) {
				claim.DeletionTimestamp = &metav1.Time{Time: noon}
			}), pod("a", "1", on("n")))...),
			explain.Terminating, "Node n is being removed: 1 pod left to evict", nil,
		},
		"When it is being removed for another cluster, it should say so": {
			with(append(machine("n", "general", "medium", "8", func(_ *corev1.Node, claim *karpv1.NodeClaim) {
				claim.DeletionTimestamp = &metav1.Time{Time: noon}
				claim.StatusConditions().SetTrueWithReason(karpv1.ConditionTypeDisruptionReason, "CapacityReclaimed", "CapacityReclaimed")
			}), pod("a", "1", on("n")))...),
			explain.Terminating, "Node n is being removed because another cluster reclaims its capacity: 1 pod left to evict", nil,
		},
		"When it isn't Karpenter's, it should say so": {
			with(machine("n", "general", "medium", "8", nil)[:1]...),
			explain.Unmanaged, "Node n isn't managed by Karpenter: it has no NodeClaim, so Karpenter neither removes nor replaces it", nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			answer, err := simulate(t, test.objects...).Node(t.Context(), "n")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(answer.Summary).To(Equal(test.summary))
			g.Expect(answer.Decision).To(Equal(test.decision))
			g.Expect(answer.Blocking).To(Equal(test.blocking))
		})
	}
	t.Run("When its template's image is older than nodes should be, it should say so and what changes that", func(t *testing.T) {
		g := NewWithT(t)
		older := nodeClass(func(class *v1alpha1.ClusterAPINodeClass) {
			class.Status.Version = "1.36.3"
			medium := &class.Status.Templates[1]
			medium.Source, medium.Version, medium.Image = "VSphereMachineTemplate/medium", "1.36.2", v1alpha1.ImageOlder
		})
		runs := func(version string) *explain.NodeAnswer {
			node := machine("n", "general", "medium", "8", func(node *corev1.Node, _ *karpv1.NodeClaim) { node.Status.NodeInfo.KubeletVersion = version })
			answer, err := simulate(t, append(node, older, nodePool("general", nil), pod("a", "6", on("n")))...).Node(t.Context(), "n")
			g.Expect(err).NotTo(HaveOccurred())
			return answer
		}
		const why = "the image of VSphereMachineTemplate/medium has 1.36.2, and nodes of node class default get 1.36.3; " +
			"a replacement would boot the same image until a template has one with 1.36.3"
		g.Expect(runs("v1.36.2").Facts).To(ContainElement(why))
		g.Expect(runs("v1.36.2").Methods).To(ContainElement(explain.MethodAnswer{Name: "drift", Reason: "the node hasn't drifted: " + why}))
		g.Expect(runs("v1.36.2").Methods).To(HaveEach(HaveField("Name", Not(BeEmpty()))), "methodNames has each of Karpenter's")
		g.Expect(runs("v1.36.1").Facts).NotTo(ContainElement(why))
	})
	t.Run("When a static NodePool has no room for the replacement of a drifted node, it should say what to change", func(t *testing.T) {
		g := NewWithT(t)
		full := nodePool("fixed", func(p *karpv1.NodePool) {
			p.Spec.Replicas, p.Spec.Limits = ptr.To(int64(1)), karpv1.Limits{"nodes": resource.MustParse("1")}
		})
		answer, err := simulate(t, append(machine("n", "fixed", "medium", "8", func(_ *corev1.Node, claim *karpv1.NodeClaim) {
			claim.StatusConditions().SetTrueWithReason(karpv1.ConditionTypeDrifted, "NodePoolDrifted", "NodePoolDrifted")
		}), nodeClass(nil), full)...).Node(t.Context(), "n")
		g.Expect(err).NotTo(HaveOccurred())
		const why = "Karpenter launches a replacement first, and spec.limits.nodes 1 of NodePool fixed leaves no room for one beside spec.replicas 1; set it to 2 or more, or remove it"
		g.Expect(answer.Methods).To(ContainElement(explain.MethodAnswer{Name: "drift of a static NodePool", Reason: why}))
		g.Expect(answer.Summary).To(Equal("Node n stays: " + why))
		g.Expect(answer.Missing).To(ConsistOf(ContainSubstring("may terminate the node before it launches the replacement")))
	})
	t.Run("When a replacement can't be launched beside a drifted node, it should say that the node is terminated first", func(t *testing.T) {
		g := NewWithT(t)
		drifted := machine("n", "general", "medium", "8", func(_ *corev1.Node, claim *karpv1.NodeClaim) {
			claim.StatusConditions().SetTrueWithReason(karpv1.ConditionTypeDrifted, "NodePoolDrifted", "NodePoolDrifted")
		})
		answer, err := simulateWith(t, platform{full: true}, with(append(drifted, pod("a", "6", on("n")), pod("b", "6", nil))...)...).Node(t.Context(), "n")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(answer.Summary).To(Equal("Node n can be disrupted now (drift): it would be terminated before its replacement is launched (source-full)"))
		g.Expect(answer.Missing).To(BeEmpty())
	})
	t.Run("When a NodeClaim is named, it should answer for its node", func(t *testing.T) {
		g := NewWithT(t)
		answer, err := simulate(t, with(machine("n", "general", "medium", "8", nil)...)...).Node(t.Context(), "claim-n")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(answer.Node).To(Equal("n"))
	})
	t.Run("When there is no such node, it should say how to find it", func(t *testing.T) {
		_, err := simulate(t, base...).Node(t.Context(), "n")
		NewWithT(t).Expect(err).To(MatchError("the cluster has no node and no NodeClaim \"n\"; see `kubectl get nodes,nodeclaims`"))
	})
}
