// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/test/disruption"
)

// Story 3: an admin edits a NodePool, and its nodes are replaced within the disruption budget.
func TestDisruptionBudget(t *testing.T) {
	t.Parallel()
	t.Run("When a NodePool's template changes, it should replace the nodes, never more at once than the budget allows", func(t *testing.T) {
		c := take(t, violet)
		g := NewWithT(t)
		pool := c.nodePool(t, "general", budget("1"))
		c.workload(t, "web", 4, "500m", apart)
		c.waitRunning(t, "web")
		before := names(c.nodes(g, t.Context()))
		g.Expect(before).To(HaveLen(4))

		disrupted := c.watchDisruptions(t)
		original := pool.DeepCopy()
		pool.Spec.Template.Labels = map[string]string{"team": "web"}
		g.Expect(c.guest.Patch(t.Context(), pool, client.MergeFrom(original))).To(Succeed())
		g.Eventually(func(g Gomega, ctx context.Context) {
			nodes := c.nodes(g, ctx)
			g.Expect(nodes).To(HaveLen(4))
			g.Expect(nodes).To(HaveEach(HaveField("Labels", HaveKeyWithValue("team", "web"))))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		c.waitRunning(t, "web")

		most, replaced := disrupted()
		g.Expect(most).To(Equal(1), "the most nodes that were disrupted at once")
		g.Expect(replaced).To(ContainElements(before))
	})
}

func names(nodes []corev1.Node) []string {
	out := make([]string, 0, len(nodes))
	for _, node := range nodes {
		out = append(out, node.Name)
	}
	return out
}

// watchDisruptions watches every change of every NodeClaim from now on. The function that it returns ends the watch and
// says how many nodes were disrupted at once at most, and which nodes ever were, counted as Karpenter's budgets do.
func (c *cluster) watchDisruptions(t *testing.T) (result func() (most int, ever []string)) {
	t.Helper()
	end, err := disruption.Watch(t.Context(), c.guest)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return end
}
