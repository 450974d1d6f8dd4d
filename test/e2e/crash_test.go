// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	localworld "github.com/autonode-io/autonode/test/world"
)

// Story 7: our programs die in the middle of their work, and the work completes with nothing doubled or leaked.
func TestCrash(t *testing.T) {
	t.Parallel()
	t.Run("When the active Karpenter is killed in the middle of 50 creations, it should end with one Machine per NodeClaim", func(t *testing.T) {
		c := take(t, blue)
		g := NewWithT(t)
		was := c.takeInventory(g, t.Context())
		c.endsSettled(t, initialRelease, was)
		c.nodePool(t, "general")
		c.workload(t, "web", 50, "100m", apart)
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(len(c.machines(g, ctx))).To(BeNumerically(">=", 5))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		g.Expect(len(c.nodes(g, t.Context()))).To(BeNumerically("<", 50), "it has to be the middle")
		lease := c.lease(g, t.Context())
		leader := client.ObjectKey{Namespace: c.namespace(), Name: lease.Labels[v1alpha1.LeaderPodLabel]}
		g.Expect(world.Agent().Kill(t.Context(), leader, v1beta1.KarpenterComponent)).To(Succeed())
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.lease(g, ctx).Spec.HolderIdentity).NotTo(Equal(lease.Spec.HolderIdentity))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed(), "another one takes over")

		c.waitRunning(t, "web")
		c.waitSettled(t, initialRelease, was)
		c.scale(t, "web", 0)
		c.waitNothingLeft(t)
	})

	t.Run("When the operator is killed in the middle of an enable, it should complete the enable", func(t *testing.T) {
		c := take(t, green)
		g := NewWithT(t)
		c.endsSettled(t, initialRelease, c.takeInventory(g, t.Context()))
		c.patch(t, func(spec *v1beta1.HostedClusterSpec) { spec.AutoNode = nil })
		c.waitDisabled(t)
		c.patch(t, func(spec *v1beta1.HostedClusterSpec) {
			spec.Release.Image = world.Release(initialRelease)
			spec.AutoNode = autoNode()
		})
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.karpenterObjects(g, ctx)).NotTo(BeEmpty())
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval / 10).Should(Succeed())
		operators := &corev1.PodList{}
		g.Expect(c.management.List(t.Context(), operators, client.InNamespace(localworld.OperatorNamespace))).To(Succeed())
		g.Expect(operators.Items).NotTo(BeEmpty())
		for _, pod := range operators.Items {
			g.Expect(world.Agent().Kill(t.Context(), client.ObjectKeyFromObject(&pod), pod.Spec.Containers[0].Name)).To(Succeed())
		}
		g.Expect(c.condition(g, t.Context(), v1beta1.AutoNodeEnabled).Status).NotTo(Equal(metav1.ConditionTrue), "it has to be the middle")
		c.waitEnabled(t, initialRelease)
		for _, pod := range operators.Items {
			was := pod.Status.ContainerStatuses[0].RestartCount
			g.Eventually(func(g Gomega, ctx context.Context) {
				g.Expect(c.management.Get(ctx, client.ObjectKeyFromObject(&pod), &pod)).To(Succeed())
				g.Expect(pod.Status.ContainerStatuses[0].RestartCount).To(Equal(was+1), "%s was killed", pod.Name)
			}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		}
		c.nodePool(t, "general")
		c.workload(t, "web", 1, "100m")
		c.waitRunning(t, "web")
	})
}

// lease is Karpenter's.
func (c *cluster) lease(g Gomega, ctx context.Context) *coordinationv1.Lease {
	leases := &coordinationv1.LeaseList{}
	g.Expect(c.management.List(ctx, leases, client.InNamespace(c.namespace()), client.HasLabels{v1alpha1.LeaderPodLabel})).To(Succeed())
	g.Expect(leases.Items).To(HaveLen(1))
	return &leases.Items[0]
}
