// SPDX-License-Identifier: Apache-2.0

package machine

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// Unhealthy tells whether a MachineHealthCheck wants a Machine to be replaced. Its mark alone doesn't say so: the check never takes it away, not
// even when the machine has recovered, and Cluster API's own owners look at both conditions too (collections.IsUnhealthyAndOwnerRemediated). Where
// nothing tells how the check went, somebody else has made the mark, and means it.
func Unhealthy(m *clusterv1.Machine) bool {
	return Condition(m, clusterv1.MachineOwnerRemediatedCondition).Status == metav1.ConditionFalse &&
		Condition(m, clusterv1.MachineHealthCheckSucceededCondition).Status != metav1.ConditionTrue
}

// Repairable is how many of a NodePool's machines may be unhealthy at once for them to be replaced: 20 %, rounded up, as in
// Karpenter's own node repair.
func Repairable(machines int) int { return (machines + 4) / 5 }

// Condition returns a Machine's condition, zero when it has none of that type.
func Condition(m *clusterv1.Machine, kind string) metav1.Condition {
	for _, condition := range m.Status.Conditions {
		if condition.Type == kind {
			return condition
		}
	}
	return metav1.Condition{}
}
