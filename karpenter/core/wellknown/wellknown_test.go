// SPDX-License-Identifier: Apache-2.0

package wellknown_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"

	_ "github.com/autonode-io/autonode/karpenter/core/wellknown" // adds to Karpenter's sets
)

func TestUninitializedTaint(t *testing.T) {
	// What Karpenter's scheduler requires of a node that has joined and isn't initialized: may a pod without tolerations go there?
	node := func(initialized bool) *state.StateNode {
		n := state.NewNode()
		n.NodeClaim = &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{karpv1.NodePoolLabelKey: "general"}}}
		n.Node = &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{karpv1.NodePoolLabelKey: "general", karpv1.NodeRegisteredLabelKey: "true"}},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{clusterv1.NodeUninitializedTaint}},
		}
		if initialized {
			n.Node.Labels[karpv1.NodeInitializedLabelKey] = "true"
		}
		return n
	}
	pod := &corev1.Pod{}
	t.Run("When a node still has Cluster API's uninitialized taint, it should count for the pods that it was made for, so that no second one comes", func(t *testing.T) {
		if err := karpscheduling.Taints(node(false).Taints()).ToleratesPod(pod); err != nil {
			t.Error(err)
		}
	})
	t.Run("When an initialized node gets that taint, it should not count", func(t *testing.T) {
		if err := karpscheduling.Taints(node(true).Taints()).ToleratesPod(pod); err == nil {
			t.Error("the taint is overlooked for good")
		}
	})
}
