// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// repairToleration is how long a node may be not ready or unresponsive before it is replaced. Bare-metal machines take that long to
// reboot.
const repairToleration = 30 * time.Minute

// builtInRepairPolicies are about the kubelet's condition, and about those that node monitoring agents report. Types and durations are those
// of Karpenter's AWS provider (pkg/cloudprovider/cloudprovider.go, v1.14.1). A node without a condition isn't affected by its policy. The
// first is the default of the set, of which Karpenter core wants one: the others match every reason.
var builtInRepairPolicies = []karpcloudprovider.RepairPolicy{
	{ConditionType: corev1.NodeReady, ConditionStatus: corev1.ConditionFalse, TolerationDuration: repairToleration},
	{ConditionType: corev1.NodeReady, ConditionStatus: corev1.ConditionUnknown, TolerationDuration: repairToleration},
	{ConditionType: "AcceleratedHardwareReady", ConditionStatus: corev1.ConditionFalse, TolerationDuration: 10 * time.Minute},
	{ConditionType: "StorageReady", ConditionStatus: corev1.ConditionFalse, TolerationDuration: repairToleration},
	{ConditionType: "NetworkingReady", ConditionStatus: corev1.ConditionFalse, TolerationDuration: repairToleration},
	{ConditionType: "KernelReady", ConditionStatus: corev1.ConditionFalse, TolerationDuration: repairToleration},
	{ConditionType: "ContainerRuntimeReady", ConditionStatus: corev1.ConditionFalse, TolerationDuration: repairToleration},
}

// RepairPolicies are the node conditions for which a node is replaced, where the feature gate NodeRepair is on. The caller must not
// modify them.
func (c *CloudProvider) RepairPolicies() []karpcloudprovider.RepairPolicy { return c.repairPolicies }

// repairPolicies returns the built-in policies with those of the platform.
func repairPolicies(platform []v1alpha1.RepairPolicy) []karpcloudprovider.RepairPolicy {
	policies := slices.Clone(builtInRepairPolicies)
	for _, own := range platform {
		policy := karpcloudprovider.RepairPolicy{
			ConditionType: own.ConditionType, ConditionStatus: own.ConditionStatus, TolerationDuration: own.TolerationDuration.Duration,
		}
		if i := slices.IndexFunc(policies, func(other karpcloudprovider.RepairPolicy) bool {
			return other.ConditionType == policy.ConditionType && other.ConditionStatus == policy.ConditionStatus
		}); i >= 0 {
			policies[i] = policy
		} else {
			policies = append(policies, policy)
		}
	}
	for i := range policies {
		policies[i].Action, policies[i].TerminationGracePeriod = karpcloudprovider.ReplaceNode, new(time.Duration)
		if i > 0 {
			policies[i].ReasonRegex = anyReason
		}
	}
	return policies
}

// anyReason matches every reason of a condition, also none.
const anyReason = ".*"

// Reboot implements cloudprovider.CloudProvider. No policy asks for it.
func (c *CloudProvider) Reboot(context.Context, *karpv1.NodeClaim, string) error {
	return karpcloudprovider.NewNodeRebootNotImplementedError()
}
