// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

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
	most := 0
	now, ever := map[types.UID]struct{}{}, map[string]struct{}{}
	end := c.watchNodeClaims(t, func(claim *karpenterv1.NodeClaim) {
		if disruption.Counts(claim) {
			now[claim.UID], ever[claim.Status.NodeName] = struct{}{}, struct{}{}
		} else {
			delete(now, claim.UID)
		}
		most = max(most, len(now))
	}, func(claim *karpenterv1.NodeClaim) { delete(now, claim.UID) })
	return func() (int, []string) {
		end()
		return most, keys(ever)
	}
}

// watchNodeClaims calls see with every NodeClaim and with each of its changes, and forget when it has gone, one after another, until it is
// ended. It goes on when the API server is restarted, as an upgrade does: while that is away, Karpenter can't decide anything either.
func (c *cluster) watchNodeClaims(t *testing.T, see, forget func(*karpenterv1.NodeClaim)) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	informer := toolscache.NewSharedInformer(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list := &karpenterv1.NodeClaimList{}
			return list, c.guest.List(ctx, list, &client.ListOptions{Raw: &options})
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return c.guest.Watch(ctx, &karpenterv1.NodeClaimList{}, &client.ListOptions{Raw: &options})
		},
	}, &karpenterv1.NodeClaim{}, 0)

	var mu sync.Mutex
	one := func(what func(*karpenterv1.NodeClaim)) func(any) {
		return func(object any) {
			if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = last.Obj
			}
			mu.Lock()
			defer mu.Unlock()
			what(object.(*karpenterv1.NodeClaim))
		}
	}
	_, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: one(see), UpdateFunc: func(_, object any) { one(see)(object) }, DeleteFunc: one(forget),
	})
	g := NewWithT(t)
	g.Expect(err).NotTo(HaveOccurred())
	var done sync.WaitGroup
	done.Go(func() { informer.RunWithContext(ctx) })
	g.Expect(toolscache.WaitForCacheSync(ctx.Done(), informer.HasSynced)).To(BeTrue())
	return func() {
		cancel()
		done.Wait()
		mu.Lock() // what was seen is the caller's now
		defer mu.Unlock()
	}
}
