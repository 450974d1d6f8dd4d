// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/test/world/ec2"
)

// What EC2 refuses, or takes away, ends as docs/platform/failures.md states.
func TestFailures(t *testing.T) {
	c := acquire(t, green)
	spot := []string{karpv1.CapacityTypeSpot}

	t.Run("When a zone has no capacity of a type, it should launch the next cheapest at once and say why", func(t *testing.T) {
		g := NewWithT(t)
		end := world.EC2().Inject(ec2.Fault{InstanceType: "c5.large", Zone: zoneC, Error: ec2.InsufficientInstanceCapacity("c5.large", zoneC)})
		c.nodePool(t, "scarce", map[string][]string{karpv1.CapacityTypeLabelKey: spot, corev1.LabelTopologyZone: {zoneC}})
		c.workload(t, "scarce", 1, onPool("scarce"))
		c.waitRunning(t, "scarce")
		g.Expect(end()).To(BeNumerically(">", 0), "EC2 has refused it")
		g.Expect(c.instances("scarce")).To(HaveExactElements(And(HaveField("Type", "m5.large"), HaveField("Spot", true), HaveField("Zone", zoneC))))
		g.Eventually(c.eventsOn).WithContext(t.Context()).WithArguments("scarce", "InsufficientCapacity").WithTimeout(eventually).WithPolling(interval).
			Should(ConsistOf(ContainSubstring("no capacity for spot c5.large in zone " + zoneC)))
	})

	t.Run("When a type isn't offered in a zone, it should launch the next cheapest that is", func(t *testing.T) {
		g := NewWithT(t)
		c.template(t, "m6g.large", "m6g.large", nil)
		g.Eventually(func(g Gomega, ctx context.Context) {
			class := &v1alpha1.ClusterAPINodeClass{}
			g.Expect(c.guest.Get(ctx, client.ObjectKey{Name: v1alpha1.DefaultNodeClass}, class)).To(Succeed())
			g.Expect(class.Status.Templates).To(ContainElement(HaveField("Source", "AWSMachineTemplate/m6g.large")))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		c.nodePool(t, "unsold", map[string][]string{
			karpv1.CapacityTypeLabelKey: {karpv1.CapacityTypeOnDemand}, corev1.LabelTopologyZone: {zoneC},
			corev1.LabelInstanceTypeStable: {"m6g.large", "m5.large"},
		})
		c.workload(t, "unsold", 1, onPool("unsold"))
		c.waitRunning(t, "unsold")
		g.Expect(c.instances("unsold")).To(HaveExactElements(And(HaveField("Type", "m5.large"), HaveField("Zone", zoneC))))
		g.Eventually(c.eventsOn).WithContext(t.Context()).WithArguments("unsold", "InsufficientCapacity").WithTimeout(eventually).WithPolling(interval).
			Should(ConsistOf(ContainSubstring("Unsupported: ")))
	})

	t.Run("When the account's quota is exhausted, it should say so and use what the quota doesn't count", func(t *testing.T) {
		g := NewWithT(t)
		world.EC2().SetVCPULimit(false, 0)
		defer world.EC2().SetVCPULimit(false, -1)
		// On-demand capacity is preferred; both NodePools may serve the pod.
		label := map[string]string{"example.org/team": "web"}
		for name, capacityType := range map[string]string{"preferred": karpv1.CapacityTypeOnDemand, "fallback": karpv1.CapacityTypeSpot} {
			c.nodePool(t, name, map[string][]string{
				karpv1.CapacityTypeLabelKey: {capacityType}, corev1.LabelTopologyZone: {zoneB}, corev1.LabelInstanceTypeStable: {"m5.large"},
			}, func(pool *karpv1.NodePool) {
				pool.Spec.Template.Labels = label
				if name == "preferred" {
					pool.Spec.Weight = new(int32(10))
				}
			})
		}
		c.workload(t, "quota", 1, label)
		c.waitRunning(t, "quota")
		g.Expect(c.instances("fallback")).To(HaveExactElements(HaveField("Spot", true)))
		g.Expect(c.instances("preferred")).To(BeEmpty())
		g.Eventually(c.eventsOn).WithContext(t.Context()).WithArguments("preferred", "QuotaExceeded").WithTimeout(eventually).WithPolling(interval).
			Should(ConsistOf(ContainSubstring("VcpuLimitExceeded")))
	})

	t.Run("When EC2 throttles, it should be the same machine in the end, and no failure", func(t *testing.T) {
		g := NewWithT(t)
		end := world.EC2().Inject(ec2.Fault{Error: ec2.RequestLimitExceeded(), Times: 7})
		c.nodePool(t, "slow", map[string][]string{karpv1.CapacityTypeLabelKey: spot, corev1.LabelTopologyZone: {zoneA}})
		c.workload(t, "slow", 1, onPool("slow"))
		c.waitRunning(t, "slow")
		g.Expect(end()).To(Equal(7))
		g.Expect(c.instances("slow")).To(HaveLen(1))
		for _, reason := range []string{"InsufficientCapacity", "QuotaExceeded", "MachineFailed", "LaunchTimeout"} {
			g.Expect(c.eventsOn(t.Context(), "slow", reason)).To(BeEmpty())
		}
	})

	for name, tc := range map[string]struct {
		pool string
		end  func(id string) error
		code string
	}{
		"When a person terminates an instance, it should be replaced without waiting for its node": {"ended", world.EC2().Terminate, "Client.UserInitiatedShutdown"},
		"When EC2 takes a spot instance back, it should be replaced without waiting for its node":  {"taken", world.EC2().Reclaim, "Server.SpotInstanceTermination"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			c.nodePool(t, tc.pool, map[string][]string{karpv1.CapacityTypeLabelKey: spot, corev1.LabelTopologyZone: {zoneB}})
			c.workload(t, tc.pool, 1, onPool(tc.pool))
			c.waitRunning(t, tc.pool)
			before := c.instances(tc.pool)
			g.Expect(before).To(HaveLen(1))
			g.Expect(tc.end(before[0].ID)).To(Succeed())
			g.Eventually(func(g Gomega, ctx context.Context) {
				nodes := c.nodes(g, ctx, tc.pool)
				g.Expect(nodes).To(HaveLen(1))
				g.Expect(nodes[0].Spec.ProviderID).NotTo(HaveSuffix(before[0].ID))
				g.Expect(c.instances(tc.pool)).To(HaveLen(1))
			}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
			c.waitRunning(t, tc.pool)
			g.Expect(c.eventsOn(t.Context(), tc.pool, "InstanceTerminated")).To(HaveLen(1))
		})
	}
}
