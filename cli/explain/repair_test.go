// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/cli/explain"
)

func TestNodeRepair(t *testing.T) {
	repairs := []karpcloudprovider.RepairPolicy{
		{
			ConditionType: corev1.NodeReady, ConditionStatus: corev1.ConditionFalse, TolerationDuration: 30 * time.Minute,
			TerminationGracePeriod: ptr.To(time.Minute), Action: karpcloudprovider.ReplaceNode,
		},
		{
			ConditionType: "GPUHealthy", ConditionStatus: corev1.ConditionFalse, ReasonRegex: "Xid", TolerationDuration: 10 * time.Minute,
			TerminationGracePeriod: ptr.To(time.Minute), Action: karpcloudprovider.RebootNode,
		},
	}
	broken := func(condition corev1.NodeConditionType, reason string, since time.Duration) func(*corev1.Node, *karpv1.NodeClaim) {
		return func(node *corev1.Node, claim *karpv1.NodeClaim) {
			node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
				Type: condition, Status: corev1.ConditionFalse, Reason: reason, LastTransitionTime: metav1.NewTime(noon.Add(-since)),
			})
			claim.StatusConditions().SetUnknown(karpv1.ConditionTypeConsolidatable)
		}
	}
	budget := func(nodes string) *karpv1.NodePool {
		return nodePool("general", func(p *karpv1.NodePool) { p.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: nodes}} })
	}
	for name, test := range map[string]struct {
		pool *karpv1.NodePool
		node []client.Object
		want explain.MethodAnswer
	}{
		"When nothing is broken, it should say so": {
			budget("1"), machine("n", "general", "medium", "8", nil), explain.MethodAnswer{Name: "repair", Reason: "the node has no condition that is repaired"},
		},
		"When a condition is young, it should say when the node is repaired, and how": {
			budget("1"), machine("n", "general", "medium", "8", broken("GPUHealthy", "Xid79", 4*time.Minute)),
			explain.MethodAnswer{Name: "repair", Reason: "GPUHealthy=False (Xid79) is repaired in 6m: RebootNode"},
		},
		"When a policy requests a reboot, it should say so": {
			budget("1"), machine("n", "general", "medium", "8", broken("GPUHealthy", "Xid79", 11*time.Minute)),
			explain.MethodAnswer{Name: "repair", Disrupts: true, Reason: "GPUHealthy=False: it would be drained and its machine rebooted"},
		},
		"When no policy is for the reason, it should say what replaces the node": {
			budget("1"), machine("n", "general", "medium", "8", broken("GPUHealthy", "Fan", 31*time.Minute)),
			explain.MethodAnswer{Name: "repair", Disrupts: true, Reason: "GPUHealthy=False: it would be replaced by medium at $0.200 an hour"},
		},
		"When the budget allows none, it should say so": {
			budget("0"), machine("n", "general", "medium", "8", broken("GPUHealthy", "Xid79", 11*time.Minute)),
			explain.MethodAnswer{Name: "repair", Reason: "the budgets of NodePool general allow no disruption for reason Unhealthy now; nodes that are being removed or rebooted count against them"},
		},
		"When a person forbids it, it should say so": {
			budget("1"), machine("n", "general", "medium", "8", func(node *corev1.Node, claim *karpv1.NodeClaim) {
				broken("GPUHealthy", "Xid79", 11*time.Minute)(node, claim)
				node.Annotations = map[string]string{karpv1.DoNotRepairAnnotationKey: "true"}
			}), explain.MethodAnswer{Name: "repair", Reason: `repair is blocked through the "karpenter.sh/do-not-repair" annotation`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			objects := slices.Concat(test.node, []client.Object{nodeClass(nil), test.pool, pod("a", "6", on("n"))})
			answer, err := simulateWith(t, platform{repairs: repairs}, objects...).Node(t.Context(), "n")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(answer.Methods).To(ContainElement(test.want))
		})
	}
}
