// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func nodeReady(t *testing.T, name string) func() corev1.ConditionStatus {
	return func() corev1.ConditionStatus {
		node, err := management.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return corev1.ConditionUnknown
		}
		index := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
		if index < 0 {
			return corev1.ConditionUnknown
		}
		return node.Status.Conditions[index].Status
	}
}

func TestNode(t *testing.T) {
	t.Run("When the agent has started, it should be a ready node with capacity and a lease", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(nodeReady(t, nodeName)()).To(Equal(corev1.ConditionTrue))
		node, err := management.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(node.Labels).To(HaveKeyWithValue(corev1.LabelHostname, nodeName))
		g.Expect(node.Status.Allocatable.Cpu().IsZero()).To(BeFalse())
		g.Expect(node.Status.NodeInfo.KubeletVersion).To(HavePrefix("v1."))
		lease, err := management.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), nodeName, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(time.Since(lease.Spec.RenewTime.Time)).To(BeNumerically("<", leaseDuration))
		g.Expect(lease.OwnerReferences).To(HaveLen(1))
	})
	t.Run("When someone deletes the node, it should register again", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(management.CoreV1().Nodes().Delete(t.Context(), nodeName, metav1.DeleteOptions{})).To(Succeed())
		g.Expect(agent.reportNode(t.Context(), true)).To(Succeed())
		g.Expect(nodeReady(t, nodeName)()).To(Equal(corev1.ConditionTrue))
	})
	t.Run("When nothing has changed, it should leave the status alone until a heartbeat is due", func(t *testing.T) {
		g, now := NewWithT(t), time.Now()
		first := agent.nodeStatus(corev1.NodeStatus{}, true, now)
		g.Expect(agent.nodeStatus(first, true, now.Add(time.Minute))).To(Equal(first))
		g.Expect(agent.nodeStatus(first, true, now.Add(statusPeriod+time.Second))).NotTo(Equal(first))
	})
}
