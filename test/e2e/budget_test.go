// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// Story 3: an admin edits a NodePool, and its nodes are replaced within the disruption budget.
func TestDisruptionBudget(t *testing.T) {
	t.Parallel()
	t.Run("When a NodePool's template changes, it should replace the nodes, never more at once than the budget allows", func(t *testing.T) {
		c := take(t, blue)
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
// says how many nodes were disrupted at once at most, and which nodes ever were. It counts as Karpenter's budgets do: from
// the decision until the node is drained and its machine is being terminated.
func (c *cluster) watchDisruptions(t *testing.T) (result func() (most int, ever []string)) {
	t.Helper()
	g := NewWithT(t)
	ctx, cancel := context.WithCancel(t.Context())
	list := &karpenterv1.NodeClaimList{}
	g.Expect(c.guest.List(ctx, list)).To(Succeed())
	// It goes on where it was when the API server is restarted, as an upgrade does.
	watcher, err := watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, nodeClaimWatcher{c.guest})
	g.Expect(err).NotTo(HaveOccurred())

	var most int
	var broken error
	ever := map[string]struct{}{}
	var done sync.WaitGroup
	done.Go(func() {
		now := map[types.UID]struct{}{}
		for event := range watcher.ResultChan() {
			claim, ok := event.Object.(*karpenterv1.NodeClaim)
			if !ok {
				broken = errUnexpectedEvent(event)
				return
			}
			if event.Type != watch.Deleted && isDisrupted(claim) {
				now[claim.UID] = struct{}{}
				ever[claim.Status.NodeName] = struct{}{}
			} else {
				delete(now, claim.UID)
			}
			most = max(most, len(now))
		}
	})
	return func() (int, []string) {
		t.Helper()
		cancel()
		done.Wait()
		g.Expect(broken).NotTo(HaveOccurred())
		return most, keys(ever)
	}
}

// nodeClaimWatcher begins watches of NodeClaims.
type nodeClaimWatcher struct{ guest client.WithWatch }

func (w nodeClaimWatcher) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return w.guest.Watch(ctx, &karpenterv1.NodeClaimList{}, &client.ListOptions{Raw: &options})
}

func isDisrupted(claim *karpenterv1.NodeClaim) bool {
	conditions := claim.StatusConditions()
	if conditions.IsTrue(karpenterv1.ConditionTypeInstanceTerminating) {
		return false
	}
	return claim.DeletionTimestamp != nil || conditions.IsTrue(karpenterv1.ConditionTypeDisruptionReason)
}
