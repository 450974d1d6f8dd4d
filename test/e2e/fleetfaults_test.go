// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	localworld "github.com/autonode-io/autonode/test/world"
)

// callMidway calls for replicas in each cluster, more than there are reserved machines for, and kills a cluster's active Karpenter and both
// operators in the middle of that: however late the kills are, the first half of the replicas leaves one of the ten machines.
func (f *fleet) callMidway(t *testing.T, reserved *reservations, replicas int32) {
	t.Helper()
	g, c := NewWithT(t), f.clusters[2]
	f.scale(t, replicas/2)
	count := 0
	g.Eventually(func(g Gomega) {
		count, _, _ = reserved.now()
		g.Expect(count).To(BeNumerically(">", 0))
	}).WithTimeout(eventually).WithPolling(interval / 10).Should(Succeed())
	g.Expect(count).To(BeNumerically("<", 10), "it has to be the middle")
	operators, takenOver := &corev1.PodList{}, c.killKarpenter(t)
	g.Expect(f.management.List(t.Context(), operators, client.InNamespace(localworld.OperatorNamespace))).To(Succeed())
	g.Expect(operators.Items).NotTo(BeEmpty())
	for _, pod := range operators.Items {
		g.Expect(c.world.Agent().Kill(t.Context(), client.ObjectKeyFromObject(&pod), pod.Spec.Containers[0].Name)).To(Succeed())
	}
	after, _, _ := reserved.now()
	t.Logf("%d of ten were in use when the first was killed, and %d when all were", count, after)
	f.scale(t, replicas)
	takenOver()
	g.Eventually(func(g Gomega, ctx context.Context) {
		for _, pod := range operators.Items {
			was := pod.Status.ContainerStatuses[0].RestartCount
			now := &corev1.Pod{}
			g.Expect(f.management.Get(ctx, client.ObjectKeyFromObject(&pod), now)).To(Succeed())
			g.Expect(now.Status.ContainerStatuses[0].RestartCount).To(Equal(was+1), "%s was killed", pod.Name)
		}
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}

// scale calls for as many pods in each cluster, of which each needs a machine.
func (f *fleet) scale(t *testing.T, replicas int32) {
	t.Helper()
	for _, c := range f.clusters {
		c.scale(t, "web", replicas)
	}
}

// allowCapacityTypes lets the NodePools have machines of these capacity types. Pods that find none wait.
func (f *fleet) allowCapacityTypes(t *testing.T, capacityTypes ...string) {
	t.Helper()
	for _, c := range f.clusters {
		NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
			pool := &karpv1.NodePool{}
			g.Expect(c.guest.Get(ctx, client.ObjectKey{Name: "shared"}, pool)).To(Succeed())
			before := pool.DeepCopy()
			pool.Spec.Template.Spec.Requirements = nil
			require(karpv1.CapacityTypeLabelKey, capacityTypes...)(pool)
			g.Expect(c.guest.Patch(ctx, pool, client.MergeFrom(before))).To(Succeed())
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
	}
}

// waitLaunched waits until as many nodes are reserved, and all others on demand.
func (f *fleet) waitLaunched(t *testing.T, reserved, onDemand int) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
		nodes := map[string]int{}
		for _, c := range f.clusters {
			for _, node := range c.nodes(g, ctx) {
				nodes[node.Labels[karpv1.CapacityTypeLabelKey]]++
			}
		}
		g.Expect(nodes).To(Equal(map[string]int{karpv1.CapacityTypeReserved: reserved, karpv1.CapacityTypeOnDemand: onDemand}))
	}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
}
