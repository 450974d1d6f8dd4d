// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// Story 2: the cheapest fitting machine is chosen, and what a NodePool requires is honoured.
func TestCheapest(t *testing.T) {
	// The shapes and prices are the world's: see test/world/hosting.
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
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := take(t, blue)
			g := NewWithT(t)
			c.nodePool(t, "general", tc.options...)
			c.workload(t, "web", 1, tc.cpu)
			c.waitRunning(t, "web")
			nodes := c.nodes(g, t.Context())
			g.Expect(nodes).To(HaveLen(1))
			machines := c.machines(g, t.Context())
			g.Expect(machines).To(HaveLen(1))
			for key, value := range tc.want {
				g.Expect(nodes[0].Labels).To(HaveKeyWithValue(key, value))
			}
			g.Expect(machines[0].Spec.FailureDomain).To(Equal(nodes[0].Labels[corev1.LabelTopologyZone]))
		})
	}
}
