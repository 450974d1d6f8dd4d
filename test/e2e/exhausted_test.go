// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/v1beta1"
	localworld "github.com/autonode-io/autonode/test/world"
	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// Story 24: nodes are upgraded while the infrastructure has no machine left of the type that they prefer. What runs stays until its
// replacement is ready, and that is of the next cheapest type.
func TestUpgradeWithoutCapacity(t *testing.T) {
	t.Parallel()
	c, story := take(t, violet), t
	g := NewWithT(t)
	// On demand, c2-small is the cheapest, and c4-arm the next. See test/world/hosting.
	const preferred, next = "c2-small", "c4-arm"
	ofType := func(instanceType string) OmegaMatcher {
		return HaveField("Labels", HaveKeyWithValue(corev1.LabelInstanceTypeStable, instanceType))
	}
	g.Expect(c.guest.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "web"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		},
	})).To(Succeed())
	c.nodePool(t, "general", budget("1"), require(karpenterv1.CapacityTypeLabelKey, karpenterv1.CapacityTypeOnDemand))
	web := c.workload(t, "web", 3, "500m", apart)
	c.waitRunning(t, "web")
	nodes := c.nodes(g, t.Context())
	g.Expect(nodes).To(And(HaveLen(3), HaveEach(ofType(preferred))))
	before, disrupted := names(nodes), c.watchDisruptions(t)

	t.Run("When the payload is upgraded, each node should be replaced by one of the next cheapest type, within the budget", func(t *testing.T) {
		g := NewWithT(t)
		c.fault(story, preferred, infrav1.FaultNoCapacity, "true")
		g.Expect(world.UpgradeControlPlane(t.Context(), c.name, localworld.UpgradedKubernetes)).To(Succeed())
		c.upgradeTo(t, upgradedRelease)
		g.Eventually(func(g Gomega, ctx context.Context) {
			c.expectMostRun(g, ctx, web)
			nodes := c.nodes(g, ctx)
			g.Expect(nodes).To(And(HaveLen(3), HaveEach(ofType(next)), HaveEach(HaveField("Status.NodeInfo.KubeletVersion", localworld.UpgradedKubernetes))))
			g.Expect(c.condition(g, ctx, v1beta1.NodesUpToDate)).To(HaveField("Status", metav1.ConditionTrue))
			history := c.hostedCluster(g, ctx).Status.Version.History
			g.Expect(history).NotTo(BeEmpty())
			g.Expect(history[0]).To(And(HaveField("Version", upgradedRelease), HaveField("State", v1beta1.UpdateCompleted)))
			c.expectOneEach(g, ctx)
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		c.waitRunning(t, "web")
		most, replaced := disrupted()
		g.Expect(most).To(Equal(1), "the most nodes that were disrupted at once")
		g.Expect(replaced).To(ConsistOf(before), "each, and no new one")
		// The fault: replacements of the preferred type that the infrastructure refused.
		g.Expect(c.eventsOn(t.Context(), "NodeClaim", "InsufficientCapacity")).To(ContainElement(ContainSubstring("no capacity for on-demand " + preferred)))
	})
}
