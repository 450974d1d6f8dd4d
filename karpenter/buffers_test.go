// SPDX-License-Identifier: Apache-2.0

package karpenter

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
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

func TestLastBuffer(t *testing.T) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(schema.GroupVersion{Group: "autoscaling.x-k8s.io", Version: "v1beta1"},
		&autoscalingv1beta1.CapacityBuffer{}, &autoscalingv1beta1.CapacityBufferList{})
	for name, test := range map[string]struct {
		buffers []client.Object
		want    int
	}{
		"When the last capacity buffer has gone, it should have no node hold one": {nil, 0},
		"When there is another capacity buffer, it should leave the next pass to count": {
			[]client.Object{&autoscalingv1beta1.CapacityBuffer{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}}}, 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			cluster := state.NewCluster(clock.RealClock{}, nil, nil)
			cluster.UpdateBufferPodCounts(map[string]int{"cloud://x": 1})
			guest := fake.NewClientBuilder().WithScheme(scheme).WithObjects(test.buffers...).Build()
			_, err := (&lastBuffer{guest: guest, cluster: cluster}).Reconcile(t.Context(), reconcile.Request{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(cluster.BufferPodCount("cloud://x")).To(Equal(test.want))
		})
	}
}
