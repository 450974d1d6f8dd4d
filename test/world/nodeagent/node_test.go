// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func nodeReady(g Gomega, t *testing.T) corev1.NodeCondition {
	node, err := management.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	index := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	g.Expect(index).To(BeNumerically(">=", 0))
	return node.Status.Conditions[index]
}

func TestNode(t *testing.T) {
	t.Run("When the controller manager has lost sight of the node, a heartbeat should make it ready again", func(t *testing.T) {
		g := NewWithT(t)
		before := nodeReady(g, t)
		_, err := management.CoreV1().Nodes().PatchStatus(t.Context(), nodeName, []byte(`{"status":{"conditions":[{"type":"Ready","status":"Unknown","lastHeartbeatTime":"2020-01-01T00:00:00Z"}]}}`))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(agent.heartbeat(t.Context())).To(Succeed())
		after := nodeReady(g, t)
		g.Expect(after.Status).To(Equal(corev1.ConditionTrue))
		g.Expect(after.LastHeartbeatTime.Time).To(BeTemporally(">=", before.LastHeartbeatTime.Time))
	})
	t.Run("When someone deletes the node, it should register again", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(management.CoreV1().Nodes().Delete(t.Context(), nodeName, metav1.DeleteOptions{})).To(Succeed())
		g.Expect(agent.heartbeat(t.Context())).To(Succeed())
		g.Expect(nodeReady(g, t).Status).To(Equal(corev1.ConditionTrue))
	})
}
