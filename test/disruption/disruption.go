// SPDX-License-Identifier: Apache-2.0

// Package disruption counts as Karpenter's disruption budgets do, for the demo and the stories.
package disruption

import (
	"github.com/awslabs/operatorpkg/status"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// Counts tells whether a NodeClaim's node counts against its NodePool's disruption budget: from the decision to disrupt it until
// it is drained and its machine is being terminated.
func Counts(claim *karpenterv1.NodeClaim) bool {
	conditions := claim.StatusConditions(status.WithObservedOnly()) // which leaves the claim, a watch's, as it is
	return !conditions.IsTrue(karpenterv1.ConditionTypeInstanceTerminating) &&
		(claim.DeletionTimestamp != nil || conditions.IsTrue(karpenterv1.ConditionTypeDisruptionReason))
}
