// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// Story 12: a platform team's MachineHealthCheck finds a dead machine, and Karpenter replaces it.
func TestRepair(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := take(t, green)
	c.nodePool(t, "mended")
	c.workload(t, "web", 1, "500m", onPool("mended"))
	c.waitRunning(t, "web")
	inPool := client.MatchingLabels{karpenterv1.NodePoolLabelKey: "mended"}
	check := &clusterv1.MachineHealthCheck{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace(), Name: "mended"},
		Spec: clusterv1.MachineHealthCheckSpec{
			ClusterName: c.name,
			Selector:    metav1.LabelSelector{MatchLabels: inPool},
			Checks: clusterv1.MachineHealthCheckChecks{UnhealthyNodeConditions: []clusterv1.UnhealthyNodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, TimeoutSeconds: ptr.To[int32](1)},
			}},
		},
	}
	g.Expect(c.management.Create(t.Context(), check)).To(Succeed())
	t.Cleanup(func() {
		NewWithT(t).Expect(c.management.Delete(context.WithoutCancel(t.Context()), check)).To(Succeed())
	})

	t.Run("When a MachineHealthCheck marks a machine, it should replace its node and say why", func(t *testing.T) {
		g := NewWithT(t)
		machines := &infrav1.KwokMachineList{}
		g.Expect(c.management.List(t.Context(), machines, client.InNamespace(c.namespace()), inPool)).To(Succeed())
		g.Expect(machines.Items).To(HaveLen(1))
		dead := machines.Items[0].Name
		c.annotate(g, t.Context(), &machines.Items[0], infrav1.FaultDies, "true")
		g.Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.eventsOn(ctx, "NodeClaim", "MachineUnhealthy")).To(ConsistOf(ContainSubstring("Machine " + c.namespace() + "/" + dead)))
			list := &clusterv1.MachineList{}
			g.Expect(c.management.List(ctx, list, client.InNamespace(c.namespace()), inPool)).To(Succeed())
			g.Expect(list.Items).To(ConsistOf(HaveField("Name", Not(Equal(dead)))), "the dead machine goes, another one comes")
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		c.waitRunning(t, "web")
	})
}
