// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// Story 2: the cheapest fitting machine is chosen, and what a NodePool requires is honoured.
func TestCheapest(t *testing.T) {
	t.Parallel()
	c := take(t, blue)
	// The instance types and prices are the world's: see test/world/hosting.
	cases := map[string]struct {
		options []poolOption
		cpu     string
		want    map[string]string
	}{
		"When anything fits, it should launch the cheapest offering": {
			cpu:  "1500m",
			want: map[string]string{corev1.LabelInstanceTypeStable: "c2-small", karpenterv1.CapacityTypeLabelKey: karpenterv1.CapacityTypeSpot},
		},
		"When a pod needs more, it should launch the cheapest that is large enough": {
			cpu:  "3",
			want: map[string]string{corev1.LabelInstanceTypeStable: "c4-arm", karpenterv1.CapacityTypeLabelKey: karpenterv1.CapacityTypeSpot, corev1.LabelArchStable: "arm64"},
		},
		"When an architecture is required, it should honour it": {
			options: []poolOption{require(corev1.LabelArchStable, "amd64")},
			cpu:     "3",
			want:    map[string]string{corev1.LabelInstanceTypeStable: "c4-large", corev1.LabelArchStable: "amd64"},
		},
		"When a zone and on-demand are required, it should honour both": {
			options: []poolOption{require(corev1.LabelTopologyZone, "b"), require(karpenterv1.CapacityTypeLabelKey, karpenterv1.CapacityTypeOnDemand)},
			cpu:     "500m",
			want: map[string]string{corev1.LabelInstanceTypeStable: "c2-small", corev1.LabelTopologyZone: "b",
				karpenterv1.CapacityTypeLabelKey: karpenterv1.CapacityTypeOnDemand},
		},
		"When an instance type is required, it should honour it though another is cheaper": {
			options: []poolOption{require(corev1.LabelInstanceTypeStable, "c8-xlarge")},
			cpu:     "500m",
			want:    map[string]string{corev1.LabelInstanceTypeStable: "c8-xlarge"},
		},
	}
	// Every case has its own NodePool, and all are created at once.
	pools := map[string]string{}
	for name, tc := range cases {
		pool := fmt.Sprintf("pool-%d", len(pools))
		pools[name] = pool
		c.nodePool(t, pool, tc.options...)
		c.workload(t, pool, 1, tc.cpu, onPool(pool))
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			pool := client.MatchingLabels{karpenterv1.NodePoolLabelKey: pools[name]}
			c.waitRunning(t, pools[name])
			nodes := &corev1.NodeList{}
			g.Expect(c.guest.List(t.Context(), nodes, pool)).To(Succeed())
			g.Expect(nodes.Items).To(HaveLen(1))
			machines := &clusterv1.MachineList{}
			g.Expect(c.management.List(t.Context(), machines, client.InNamespace(c.namespace()), pool)).To(Succeed())
			g.Expect(machines.Items).To(HaveLen(1))
			for key, value := range tc.want {
				g.Expect(nodes.Items[0].Labels).To(HaveKeyWithValue(key, value))
			}
			infrastructure := &infrav1.KwokMachine{}
			g.Expect(c.management.Get(t.Context(), client.ObjectKey{Namespace: c.namespace(), Name: machines.Items[0].Spec.InfrastructureRef.Name}, infrastructure)).To(Succeed())
			g.Expect(string(infrastructure.Spec.CapacityType)).To(Equal(nodes.Items[0].Labels[karpenterv1.CapacityTypeLabelKey]), "it is paid for as it was sold")
			g.Expect(machines.Items[0].Spec.FailureDomain).To(Equal(nodes.Items[0].Labels[corev1.LabelTopologyZone]))
		})
	}

	// The pods are there before the NodePools, so that Karpenter plans for both of them at once.
	together := map[string][]poolOption{"together": nil, "flexible": {minValues(corev1.LabelInstanceTypeStable, 4)}}
	for pool, options := range together {
		pods := c.workload(t, pool, 2, "1500m", onPool(pool))
		NewWithT(t).Eventually(func(g Gomega, ctx context.Context) {
			g.Expect(c.guest.Get(ctx, client.ObjectKeyFromObject(pods), pods)).To(Succeed())
			g.Expect(pods.Status.Replicas).To(BeEquivalentTo(2))
		}).WithContext(t.Context()).WithTimeout(eventually).WithPolling(interval).Should(Succeed())
		c.nodePool(t, pool, options...)
	}
	bought := func(t *testing.T, pool string) (types []string, price float64) {
		t.Helper()
		g := NewWithT(t)
		c.waitRunning(t, pool)
		for _, node := range c.nodesOf(g, t.Context(), pool) {
			cost, err := strconv.ParseFloat(node.Labels[v1alpha1.NodePriceLabel], 64)
			g.Expect(err).NotTo(HaveOccurred())
			types, price = append(types, node.Labels[corev1.LabelInstanceTypeStable]), price+cost
		}
		return types, price
	}
	t.Run("When a NodePool requires more instance types than fit both pods, it should launch dearer machines that leave as many to choose from", func(t *testing.T) {
		g := NewWithT(t)
		cheapest, price := bought(t, "together")
		g.Expect(cheapest).To(ConsistOf("c4-arm"))
		flexible, more := bought(t, "flexible")
		g.Expect(flexible).To(ConsistOf("c2-small", "c2-small"))
		g.Expect(more).To(BeNumerically(">", price))
	})
}
