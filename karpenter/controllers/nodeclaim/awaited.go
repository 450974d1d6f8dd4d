// SPDX-License-Identifier: Apache-2.0

package nodeclaim

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// reasonsOnly is the message of a Machine whose infrastructure machine has conditions without messages, or none yet.
var reasonsOnly = regexp.MustCompile(`^(\s*\* \w+: *\w*\s*)*$|not yet reported`)

// awaited returns the condition that a machine is waiting for. A reason that only a condition of the infrastructure machine has, which the
// Machine doesn't repeat, comes first. Without any reason, the message names where to look.
func (c Config) awaited(ctx context.Context, m *clusterv1.Machine) metav1.Condition {
	last := lastCondition(m)
	if last.Type != clusterv1.MachineInfrastructureReadyCondition || !reasonsOnly.MatchString(last.Message) {
		return last
	}
	conditions := formerConditions(m)
	ref := m.Spec.InfrastructureRef
	if c.Infrastructure != nil {
		if object, err := c.Infrastructure.Get(ctx, ref.GroupKind(), ref.Name); err == nil {
			conditions = append(conditionsOfInfrastructure(object), conditions...)
		}
	}
	for _, condition := range conditions {
		if condition.Status == metav1.ConditionFalse && !reasonsOnly.MatchString(condition.Message) {
			last.Reason, last.Message = condition.Reason, condition.Message
			return last
		}
	}
	said := strings.TrimSpace(last.Message)
	if said != "" {
		said += "; "
	}
	last.Message = said + fmt.Sprintf("the infrastructure provider gives no reason; check the conditions and events of %s %s/%s and of the objects that it creates, and the provider's log",
		ref.Kind, m.Namespace, ref.Name)
	return last
}
