// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
)

// TestCrash: Karpenter dies in the middle of its work, and the work completes with nothing doubled or leaked.
func TestCrash(t *testing.T) {
	t.Parallel()
	c := acquireCluster(t, blue)
	was := c.takeInventory(NewWithT(t), t.Context())
	c.endsSettled(t, initialRelease, was)
	const nodes = 30

	t.Run("When the active Karpenter is killed in the middle of 30 creations, it should end with one Machine per NodeClaim", func(t *testing.T) {
		g := NewWithT(t)
		// However late the kill is, there are nodes to be created after it.
		pool := c.nodePool(t, "general", func(pool *karpv1.NodePool) {
			pool.Spec.Limits = karpv1.Limits{resources.Node: resource.MustParse("20")}
		})
		c.workload(t, "web", nodes, "100m", apart)
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(len(c.machines(g, ctx))).To(BeNumerically(">=", 5))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		g.Expect(len(c.nodes(g, t.Context()))).To(BeNumerically("<", nodes), "it has to be the middle")
		takenOver := c.killKarpenter(t)
		g.Expect(c.guest.Patch(t.Context(), pool, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"limits":null}}`)))).To(Succeed())
		takenOver()

		c.waitRunning(t, "web")
		c.waitSettled(t, initialRelease, was)
		c.scale(t, "web", 0)
		c.waitNothingLeft(t)
	})
}

// killKarpenter kills the active Karpenter. The function that it returns waits until another one is.
func (c *cluster) killKarpenter(t *testing.T) (takenOver func()) {
	t.Helper()
	g := NewWithT(t)
	lease := c.lease(g, t.Context())
	leader := client.ObjectKey{Namespace: c.namespace(), Name: lease.Labels[v1alpha1.LeaderPodLabel]}
	g.Expect(c.world.Agent().Kill(t.Context(), leader, v1beta1.KarpenterComponent)).To(Succeed())
	return func() {
		t.Helper()
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.lease(g, ctx).Spec.HolderIdentity).NotTo(Equal(lease.Spec.HolderIdentity))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed(), "another one takes over")
	}
}

// lease is Karpenter's.
func (c *cluster) lease(g Gomega, ctx context.Context) *coordinationv1.Lease {
	leases := &coordinationv1.LeaseList{}
	g.Expect(c.management.List(ctx, leases, client.InNamespace(c.namespace()), client.HasLabels{v1alpha1.LeaderPodLabel})).To(Succeed())
	g.Expect(leases.Items).To(HaveLen(1))
	return &leases.Items[0]
}
