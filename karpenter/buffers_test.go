// SPDX-License-Identifier: Apache-2.0

package karpenter

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/utils/clock"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
)

func TestMoveBuffers(t *testing.T) {
	t.Run("When a node with buffer pods gets another provider ID, it should still be one with buffer pods", func(t *testing.T) {
		g := NewWithT(t)
		cluster := state.NewCluster(clock.RealClock{}, nil, nil)
		cluster.UpdateBufferPodCounts(map[string]int{"capi://a/x": 2})
		moveBuffers(cluster)("capi://a/x", "cloud://x")
		g.Expect(cluster.BufferPodCount("cloud://x")).To(Equal(2))
	})

	t.Run("When a node without buffer pods gets another provider ID, it should leave the others as they are", func(t *testing.T) {
		g := NewWithT(t)
		cluster := state.NewCluster(clock.RealClock{}, nil, nil)
		cluster.UpdateBufferPodCounts(map[string]int{"cloud://other": 1})
		moveBuffers(cluster)("capi://a/x", "cloud://x")
		g.Expect(cluster.HasBufferPods("cloud://x")).To(BeFalse())
		g.Expect(cluster.HasBufferPods("cloud://other")).To(BeTrue())
	})
}
