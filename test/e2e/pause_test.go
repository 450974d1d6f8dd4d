// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"testing"

	"github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
)

// TestPause: a pause stops Karpenter and nothing else, and leaves no trace, whether a person pauses the HostedCluster or
// Cluster API's Cluster.
func TestPause(t *testing.T) {
	t.Parallel()
	c := acquireCluster(t, violet)
	g := NewWithT(t)
	c.nodePool(t, "general")
	c.workload(t, "web", 1, "100m", apart)
	c.waitRunning(t, "web")
	nodes, disrupted := names(c.nodes(g, t.Context())), c.watchDisruptions(t)
	t.Cleanup(func() { c.pauseUntil(t, context.WithoutCancel(t.Context()), nil) }) // without Karpenter no node would go

	t.Run("When a cluster is paused, pods should run on, and pending ones get no node", func(t *testing.T) {
		g := NewWithT(t)
		c.pauseUntil(t, t.Context(), new("true"))
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.karpenterPods(g, ctx)).To(BeEmpty())
			g.Expect(c.condition(g, ctx, v1beta1.AutoNodeEnabled)).To(And(
				HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1beta1.PausedReason),
				HaveField("Message", ContainSubstring("Karpenter is scaled to zero"))))
			g.Expect(c.hostedCluster(g, ctx).Status.AutoNode).To(HaveField("State", v1beta1.AutoNodeStatePaused))
			g.Expect(c.launchAllowed(g, ctx)).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1alpha1.PausedReason)))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		c.waitRunning(t, "web")
		c.scale(t, "web", 2)
		// Nothing to wait for: what must not happen is looked for over some of Karpenter's rounds.
		g.Consistently(func(g Gomega, ctx context.Context) {
			g.Expect(c.nodeClaims(g, ctx)).To(HaveLen(1))
			g.Expect(names(c.nodes(g, ctx))).To(Equal(nodes))
		}).WithContext(t.Context()).WithTimeout(rounds).WithPolling(interval).Should(Succeed())
	})

	t.Run("When the pause ends, everything should go on", func(t *testing.T) {
		g := NewWithT(t)
		c.pauseUntil(t, t.Context(), nil)
		c.waitRunning(t, "web")
		c.waitEnabled(t, initialRelease)
		g.Expect(c.launchAllowed(g, t.Context())).To(HaveField("Status", metav1.ConditionTrue))
		g.Expect(names(c.nodes(g, t.Context()))).To(ContainElements(nodes))
		g.Expect(c.hostedCluster(g, t.Context()).Status.AutoNode).To(And(
			HaveField("State", v1beta1.AutoNodeStateEnabled), HaveField("Message", BeEmpty())))
	})

	t.Run("When Cluster API's Cluster is paused, pending pods should wait and nothing be written, until it resumes", func(t *testing.T) {
		g := NewWithT(t)
		t.Cleanup(func() { c.pauseCluster(t, context.WithoutCancel(t.Context()), false) })
		c.pauseCluster(t, t.Context(), true)
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.karpenterPods(g, ctx)).To(BeEmpty())
			g.Expect(c.condition(g, ctx, v1beta1.AutoNodeEnabled)).To(And(
				HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1beta1.PausedReason),
				HaveField("Message", ContainSubstring("Cluster %s/%s is paused; unpause it to go on", c.namespace(), c.name))))
			g.Expect(c.machines(g, ctx)).To(HaveEach(HaveField("Status.Conditions", ContainElement(And(
				HaveField("Type", clusterv1.PausedCondition), HaveField("Status", metav1.ConditionTrue))))), "what Cluster API writes about it")
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		machines, nodes := c.machineRevisions(g, t.Context()), names(c.nodes(g, t.Context()))
		c.scale(t, "web", 3)
		g.Consistently(func(g Gomega, ctx context.Context) {
			g.Expect(c.nodeClaims(g, ctx)).To(HaveLen(2))
			g.Expect(c.machineRevisions(g, ctx)).To(Equal(machines))
		}).WithContext(t.Context()).WithTimeout(rounds).WithPolling(interval).Should(Succeed())
		c.pauseCluster(t, t.Context(), false)
		c.waitRunning(t, "web")
		c.waitEnabled(t, initialRelease)
		g.Expect(names(c.nodes(g, t.Context()))).To(ContainElements(nodes))
	})
	expectUndisturbed(t, disrupted)
}

// launchAllowed is the condition of the default node class.
func (c *cluster) launchAllowed(g Gomega, ctx context.Context) *status.Condition {
	class := &v1alpha1.ClusterAPINodeClass{}
	g.Expect(c.guest.Get(ctx, client.ObjectKey{Name: v1alpha1.DefaultNodeClass}, class)).To(Succeed())
	return class.StatusConditions().Get(v1alpha1.ConditionLaunchAllowed)
}

// pauseUntil sets spec.pausedUntil.
func (c *cluster) pauseUntil(t *testing.T, ctx context.Context, until *string) {
	t.Helper()
	g := NewWithT(t)
	hosted := c.hostedCluster(g, ctx)
	before := hosted.DeepCopy()
	hosted.Spec.PausedUntil = until
	g.Expect(c.management.Patch(ctx, hosted, client.MergeFrom(before))).To(Succeed())
}

// pauseCluster pauses Cluster API's Cluster, or lets it go on.
func (c *cluster) pauseCluster(t *testing.T, ctx context.Context, paused bool) {
	t.Helper()
	object := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace(), Name: c.name}}
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"paused":%t}}`, paused))
	NewWithT(t).Expect(c.management.Patch(ctx, object, patch)).To(Succeed())
}

// machineRevisions changes when anyone writes to a Machine.
func (c *cluster) machineRevisions(g Gomega, ctx context.Context) map[string]string {
	revisions := map[string]string{}
	for _, machine := range c.machines(g, ctx) {
		revisions[machine.Name] = machine.ResourceVersion
	}
	return revisions
}
