// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// TestMinimum: a source has a minimum. Karpenter removes no node below it for cost, and still replaces what drifts.
func TestMinimum(t *testing.T) {
	t.Parallel()
	c := acquireCluster(t, blue)
	// It is an annotation of a template as the faults are, and goes with the test.
	c.fault(t, "c4-large", clusterv1.AutoscalerMinSizeAnnotation, "1")
	pool := c.nodePool(t, "floor", require(corev1.LabelInstanceTypeStable, "c4-large"))
	c.workload(t, "web", 3, "500m", apart, onPool("floor"))
	c.waitRunning(t, "web")
	kept := HaveField("Annotations", HaveKeyWithValue(v1alpha1.KeptForMinimumAnnotation, HaveSuffix("/c4-large")))

	t.Run("When no pod needs its nodes any more, it should keep as many as the minimum", func(t *testing.T) {
		g := NewWithT(t)
		disrupted := c.watchDisruptions(t)
		c.scale(t, "web", 0)
		var left []string
		g.Eventually(func(g Gomega, ctx context.Context) {
			nodes := c.nodesOf(g, ctx, "floor")
			g.Expect(nodes).To(ConsistOf(kept))
			left = names(nodes)
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		// Nothing to wait for: what must not happen is looked for over some of Karpenter's rounds, in which the others went.
		g.Consistently(func(g Gomega, ctx context.Context) {
			g.Expect(names(c.nodesOf(g, ctx, "floor"))).To(Equal(left))
		}).WithContext(t.Context()).WithTimeout(rounds).WithPolling(interval).Should(Succeed())
		_, ever := disrupted()
		g.Expect(ever).To(And(HaveLen(2), Not(ContainElements(left))), "nodes that were disrupted")
	})
	t.Run("When the one that is left drifts, it should be replaced, and the next one kept", func(t *testing.T) {
		g := NewWithT(t)
		before := c.machinesOf(g, t.Context(), "floor")
		g.Expect(before).To(HaveLen(1))
		c.scale(t, "web", 1)
		c.waitRunning(t, "web")
		original := pool.DeepCopy()
		pool.Spec.Template.Labels = map[string]string{"team": "web"}
		g.Expect(c.guest.Patch(t.Context(), pool, client.MergeFrom(original))).To(Succeed())
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.nodesOf(g, ctx, "floor")).To(ConsistOf(And(kept, HaveField("Labels", HaveKeyWithValue("team", "web")))))
			g.Expect(c.machinesOf(g, ctx, "floor")).To(ConsistOf(Not(Equal(before[0]))))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		c.waitRunning(t, "web")
	})
	t.Run("When the minimum goes, so should the node without pods", func(t *testing.T) {
		g := NewWithT(t)
		c.scale(t, "web", 0)
		c.fault(t, "c4-large", clusterv1.AutoscalerMinSizeAnnotation, "0")
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.nodesOf(g, ctx, "floor")).To(BeEmpty())
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	})
}
