// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
)

// Story 13: a pause freezes Karpenter and nothing else, and leaves no trace.
func TestPause(t *testing.T) {
	t.Parallel()
	c := take(t, amber)
	g := NewWithT(t)
	c.nodePool(t, "general")
	c.workload(t, "web", 1, "100m", apart)
	c.waitRunning(t, "web")
	nodes := names(c.nodes(g, t.Context()))
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
		}).WithContext(t.Context()).WithTimeout(rollout).WithPolling(interval).Should(Succeed())
		c.waitRunning(t, "web")
		c.scale(t, "web", 2)
		// Nothing to wait for: what must not happen is looked for over some of Karpenter's rounds.
		g.Consistently(func(g Gomega, ctx context.Context) {
			g.Expect(c.nodeClaims(g, ctx)).To(HaveLen(1))
			g.Expect(names(c.nodes(g, ctx))).To(Equal(nodes))
		}).WithContext(t.Context()).WithTimeout(soon / 6).WithPolling(interval).Should(Succeed())
	})

	t.Run("When the pause ends, everything should go on by itself", func(t *testing.T) {
		g := NewWithT(t)
		c.pauseUntil(t, t.Context(), nil)
		c.waitRunning(t, "web")
		c.waitEnabled(t, initialRelease)
		g.Expect(names(c.nodes(g, t.Context()))).To(ContainElements(nodes))
		g.Expect(c.hostedCluster(g, t.Context()).Status.AutoNode).To(And(
			HaveField("State", v1beta1.AutoNodeStateEnabled), HaveField("Message", BeEmpty())))
	})
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
