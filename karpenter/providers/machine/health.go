// SPDX-License-Identifier: Apache-2.0

package machine

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// Unhealthy reports whether a MachineHealthCheck requests the replacement of a Machine. It reads two conditions, as
// Cluster API's own owners do (collections.IsUnhealthyAndOwnerRemediated): the check never removes its request, even if
// the machine recovers. A request without a result of the check is another controller's, and counts.
func Unhealthy(m *clusterv1.Machine) bool {
	return Condition(m, clusterv1.MachineOwnerRemediatedCondition).Status == metav1.ConditionFalse &&
		Condition(m, clusterv1.MachineHealthCheckSucceededCondition).Status != metav1.ConditionTrue
}

// InstanceGone reports whether the infrastructure has terminated the instance of a Machine whose node had joined.
func InstanceGone(m *clusterv1.Machine) bool {
	_, gone := m.Annotations[v1alpha1.InstanceGoneAnnotation]
	return gone
}

// Repairable is the number of a NodePool's machines that may be unhealthy at once and still be replaced: 20 %, rounded
// up, as in Karpenter's node repair.
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
