// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/cloudprovider"
)

func TestRepairPolicies(t *testing.T) {
	broken := func(conditionType corev1.NodeConditionType, after time.Duration) karpcloudprovider.RepairPolicy {
		return karpcloudprovider.RepairPolicy{ConditionType: conditionType, ConditionStatus: corev1.ConditionFalse, TolerationDuration: after}
	}
	matched := func(policies ...karpcloudprovider.RepairPolicy) []karpcloudprovider.RepairPolicy {
		for i := range policies {
			policies[i].Action, policies[i].TerminationGracePeriod = karpcloudprovider.ReplaceNode, new(time.Duration)
			if i > 0 {
				policies[i].ReasonRegex = ".*"
			}
		}
		return policies
	}
	builtIn := matched([]karpcloudprovider.RepairPolicy{
		broken(corev1.NodeReady, 30*time.Minute),
		{ConditionType: corev1.NodeReady, ConditionStatus: corev1.ConditionUnknown, TolerationDuration: 30 * time.Minute},
		broken("AcceleratedHardwareReady", 10*time.Minute), broken("StorageReady", 30*time.Minute), broken("NetworkingReady", 30*time.Minute),
		broken("KernelReady", 30*time.Minute), broken("ContainerRuntimeReady", 30*time.Minute),
	}...)
	t.Run("When a platform names no policies, there should be those of the kubelet and of node monitoring agents", func(t *testing.T) {
		NewWithT(t).Expect(cloudprovider.New(cloudprovider.Config{}).RepairPolicies()).To(Equal(builtIn))
	})
	t.Run("When a platform names policies, they should come after the built-in ones, and replace those of the same condition", func(t *testing.T) {
		g := NewWithT(t)
		minutes := func(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Minute} }
		provider := cloudprovider.New(cloudprovider.Config{RepairPolicies: []v1alpha1.RepairPolicy{
			{ConditionType: "GPUHealthy", ConditionStatus: corev1.ConditionFalse, TolerationDuration: minutes(5)},
			{ConditionType: corev1.NodeReady, ConditionStatus: corev1.ConditionUnknown, TolerationDuration: minutes(7)},
		}})
		want := matched(append(slices.Clone(builtIn), broken("GPUHealthy", 5*time.Minute))...)
		want[1].TolerationDuration = 7 * time.Minute
		g.Expect(provider.RepairPolicies()).To(Equal(want))
		g.Expect(cloudprovider.New(cloudprovider.Config{}).RepairPolicies()).To(Equal(builtIn), "of another provider")
	})
}
