// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

const (
	// repairToleration is how long a node may be not ready or unresponsive before it is replaced. Bare-metal machines take that long to
	// reboot.
	repairToleration = 30 * time.Minute
	// repairGracePeriod bounds the drain of an unhealthy node whose kubelet can still evict. Without a bound, a pod that is never ready
	// again on this node would keep its PodDisruptionBudget exhausted, and so the node.
	repairGracePeriod = 10 * time.Minute
	// anyReason matches every reason of a condition, also none.
	anyReason = ".*"
)

// fallbackRepairPolicy is for the reasons of a condition that none of the condition's policies matches. Karpenter core demands exactly one
// policy without a reason. Its condition and status have a policy for every reason, so that they never fall back.
var fallbackRepairPolicy = replaces(corev1.NodeReady, corev1.ConditionFalse, repairToleration, repairGracePeriod, "")

// builtInRepairPolicies are about the kubelet's condition, and about those that node monitoring agents report. Types and durations are
// those of Karpenter's AWS provider (pkg/cloudprovider/cloudprovider.go, v1.14.1). A node without a condition isn't affected by its policy.
var builtInRepairPolicies = []karpcloudprovider.RepairPolicy{
	// The kubelet reports, so it sees evictions too.
	replaces(corev1.NodeReady, corev1.ConditionFalse, repairToleration, repairGracePeriod, anyReason),
	// The heartbeat is lost: no kubelet confirms that a pod has ended, and a drain would only wait.
	replaces(corev1.NodeReady, corev1.ConditionUnknown, repairToleration, 0, anyReason),
	replaces("AcceleratedHardwareReady", corev1.ConditionFalse, 10*time.Minute, repairGracePeriod, anyReason),
	replaces("StorageReady", corev1.ConditionFalse, repairToleration, repairGracePeriod, anyReason),
	replaces("NetworkingReady", corev1.ConditionFalse, repairToleration, repairGracePeriod, anyReason),
	// Processes of a wedged kernel don't end.
	replaces("KernelReady", corev1.ConditionFalse, repairToleration, 0, anyReason),
	// Agents report it for a single stuck container too, and the others can still be stopped.
	replaces("ContainerRuntimeReady", corev1.ConditionFalse, repairToleration, repairGracePeriod, anyReason),
}

func replaces(
	conditionType corev1.NodeConditionType, status corev1.ConditionStatus, toleration, gracePeriod time.Duration, reason string,
) karpcloudprovider.RepairPolicy {
	return karpcloudprovider.RepairPolicy{
		ConditionType: conditionType, ConditionStatus: status, TolerationDuration: toleration, ReasonRegex: reason,
		TerminationGracePeriod: &gracePeriod, Action: karpcloudprovider.ReplaceNode,
	}
}

// RepairPolicies are the node conditions for which a node is repaired, where the feature gate NodeRepair is on. The caller must not
// modify them.
func (c *CloudProvider) RepairPolicies() []karpcloudprovider.RepairPolicy { return c.repairPolicies }

// repairPolicies returns the fallback, then the built-in policies with those of the platform. The platform's for a condition and status
// take the place of the built-in one.
func repairPolicies(platform []v1alpha1.RepairPolicy, reboot bool) []karpcloudprovider.RepairPolicy {
	policies := []karpcloudprovider.RepairPolicy{fallbackRepairPolicy}
	for _, builtIn := range builtInRepairPolicies {
		if !slices.ContainsFunc(platform, func(policy v1alpha1.RepairPolicy) bool {
			return policy.ConditionType == builtIn.ConditionType && policy.ConditionStatus == builtIn.ConditionStatus
		}) {
			policies = append(policies, builtIn)
		}
	}
	for _, policy := range platform {
		policies = append(policies, repairPolicy(policy, reboot))
	}
	return policies
}

// repairPolicy returns a platform's policy as Karpenter core has it.
func repairPolicy(platform v1alpha1.RepairPolicy, reboot bool) karpcloudprovider.RepairPolicy {
	reason := cmp.Or(platform.Reason, anyReason)
	policy := replaces(platform.ConditionType, platform.ConditionStatus, platform.TolerationDuration.Duration, repairGracePeriod, reason)
	policy.Priority = platform.Priority
	if platform.Action == v1alpha1.RepairReboot && reboot {
		policy.Action = karpcloudprovider.RebootNode
	}
	if i := slices.IndexFunc(builtInRepairPolicies, func(builtIn karpcloudprovider.RepairPolicy) bool {
		return platform.ConditionType == builtIn.ConditionType && platform.ConditionStatus == builtIn.ConditionStatus
	}); i >= 0 {
		policy.TerminationGracePeriod = builtInRepairPolicies[i].TerminationGracePeriod
	}
	if platform.TerminationGracePeriod != nil {
		policy.TerminationGracePeriod = &platform.TerminationGracePeriod.Duration
	}
	return policy
}
