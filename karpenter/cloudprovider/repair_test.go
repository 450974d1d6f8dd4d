// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"context"
	"math/rand"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/node/health"
	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/cloudprovider"
)

// matcher is what Karpenter core makes of the policies when it starts, with the feature gate NodeRepair.
func matcher(g *WithT, platform ...v1alpha1.RepairPolicy) *health.RepairPolicyMatcher {
	ctx := options.ToContext(context.Background(), &options.Options{FeatureGates: options.FeatureGates{NodeRepair: true}})
	provider := cloudprovider.New(cloudprovider.Config{RepairPolicies: platform, InPlaceReboot: true})
	made, err := health.NewRepairPolicyMatcher(ctx, provider)
	g.Expect(err).NotTo(HaveOccurred(), "%+v", platform)
	return made
}

func TestRepairPolicies(t *testing.T) {
	const replace, reboot = karpcloudprovider.ReplaceNode, karpcloudprovider.RebootNode
	minutes := func(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Minute} }
	xid := v1alpha1.RepairPolicy{
		ConditionType: "GPUHealthy", ConditionStatus: corev1.ConditionFalse, Reason: "^Xid79$", TolerationDuration: minutes(2),
		Priority: 50, Action: v1alpha1.RepairReboot,
	}
	anyXid := v1alpha1.RepairPolicy{ConditionType: "GPUHealthy", ConditionStatus: corev1.ConditionFalse, TolerationDuration: minutes(40)}
	for name, test := range map[string]struct {
		platform   []v1alpha1.RepairPolicy
		condition  corev1.NodeConditionType
		status     corev1.ConditionStatus
		reason     string
		after      time.Duration // 0: never
		period     time.Duration
		wantAction karpcloudprovider.RepairAction
	}{
		"a kubelet reports that it isn't ready": {nil, corev1.NodeReady, corev1.ConditionFalse, "KubeletNotReady", 30 * time.Minute, 10 * time.Minute, replace},
		"a heartbeat is lost":                   {nil, corev1.NodeReady, corev1.ConditionUnknown, "NodeStatusUnknown", 30 * time.Minute, 0, replace},
		"an accelerator is broken":              {nil, "AcceleratedHardwareReady", corev1.ConditionFalse, "NvidiaXID79Error", 10 * time.Minute, 10 * time.Minute, replace},
		"storage is broken":                     {nil, "StorageReady", corev1.ConditionFalse, "", 30 * time.Minute, 10 * time.Minute, replace},
		"the network is broken":                 {nil, "NetworkingReady", corev1.ConditionFalse, "", 30 * time.Minute, 10 * time.Minute, replace},
		"a kernel is wedged":                    {nil, "KernelReady", corev1.ConditionFalse, "SoftLockup", 30 * time.Minute, 0, replace},
		"a container runtime is broken":         {nil, "ContainerRuntimeReady", corev1.ConditionFalse, "", 30 * time.Minute, 10 * time.Minute, replace},
		"a node is ready":                       {nil, corev1.NodeReady, corev1.ConditionTrue, "KubeletReady", 0, 0, ""},
		"a condition has no policy":             {nil, "GPUHealthy", corev1.ConditionFalse, "Xid79", 0, 0, ""},

		"a platform's reason matches":                  {[]v1alpha1.RepairPolicy{xid}, "GPUHealthy", corev1.ConditionFalse, "Xid79", 2 * time.Minute, 10 * time.Minute, reboot},
		"no platform's reason matches":                 {[]v1alpha1.RepairPolicy{xid}, "GPUHealthy", corev1.ConditionFalse, "Xid79Again", 30 * time.Minute, 10 * time.Minute, replace},
		"a platform's policy is for every reason":      {[]v1alpha1.RepairPolicy{xid, anyXid}, "GPUHealthy", corev1.ConditionFalse, "Xid13", 40 * time.Minute, 10 * time.Minute, replace},
		"a reason has the first of several policies":   {[]v1alpha1.RepairPolicy{xid, anyXid}, "GPUHealthy", corev1.ConditionFalse, "Xid79", 2 * time.Minute, 10 * time.Minute, reboot},
		"a platform replaces a built-in policy":        {[]v1alpha1.RepairPolicy{{ConditionType: corev1.NodeReady, ConditionStatus: corev1.ConditionUnknown, TolerationDuration: minutes(7)}}, corev1.NodeReady, corev1.ConditionUnknown, "NodeStatusUnknown", 7 * time.Minute, 0, replace},
		"a platform replaces it for longer":            {[]v1alpha1.RepairPolicy{{ConditionType: corev1.NodeReady, ConditionStatus: corev1.ConditionFalse, TolerationDuration: minutes(90)}}, corev1.NodeReady, corev1.ConditionFalse, "KubeletNotReady", 90 * time.Minute, 10 * time.Minute, replace},
		"a platform bounds the drain":                  {[]v1alpha1.RepairPolicy{{ConditionType: "KernelReady", ConditionStatus: corev1.ConditionFalse, TolerationDuration: minutes(5), TerminationGracePeriod: &metav1.Duration{Duration: time.Minute}}}, "KernelReady", corev1.ConditionFalse, "", 5 * time.Minute, time.Minute, replace},
		"a platform skips the drain":                   {[]v1alpha1.RepairPolicy{{ConditionType: "StorageReady", ConditionStatus: corev1.ConditionFalse, TolerationDuration: minutes(5), TerminationGracePeriod: &metav1.Duration{}}}, "StorageReady", corev1.ConditionFalse, "", 5 * time.Minute, 0, replace},
		"a platform names one reason of a built-in":    {[]v1alpha1.RepairPolicy{{ConditionType: "KernelReady", ConditionStatus: corev1.ConditionFalse, Reason: "Lockup", TolerationDuration: minutes(5)}}, "KernelReady", corev1.ConditionFalse, "SoftLockup", 5 * time.Minute, 0, replace},
		"a built-in's reason isn't one that it names":  {[]v1alpha1.RepairPolicy{{ConditionType: "KernelReady", ConditionStatus: corev1.ConditionFalse, Reason: "Lockup", TolerationDuration: minutes(5)}}, "KernelReady", corev1.ConditionFalse, "OutOfPIDs", 30 * time.Minute, 10 * time.Minute, replace},
		"a platform's policies leave others untouched": {[]v1alpha1.RepairPolicy{xid}, corev1.NodeReady, corev1.ConditionUnknown, "NodeStatusUnknown", 30 * time.Minute, 0, replace},
	} {
		t.Run("When "+name+", Karpenter should repair as the policy declares", func(t *testing.T) {
			g := NewWithT(t)
			now := time.Now()
			node := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
				{Type: test.condition, Status: test.status, Reason: test.reason, LastTransitionTime: metav1.NewTime(now)},
			}}}
			matches := matcher(g, test.platform...).Match(node)
			if test.wantAction == "" {
				g.Expect(matches).To(BeEmpty())
				return
			}
			g.Expect(health.Resolve(matches, now.Add(test.after-time.Second), time.Time{}).Action).To(BeEmpty(), "before its time")
			resolved := health.Resolve(matches, now.Add(test.after), time.Time{})
			g.Expect(resolved.Action).To(Equal(test.wantAction))
			g.Expect(resolved.TerminationGracePeriod).To(HaveValue(Equal(test.period)))
		})
	}
	t.Run("When a reboot hasn't cured a node, the policy for every reason should replace it", func(t *testing.T) {
		g := NewWithT(t)
		now := time.Now()
		node := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: "GPUHealthy", Status: corev1.ConditionFalse, Reason: "Xid79", LastTransitionTime: metav1.NewTime(now)},
		}}}
		g.Expect(health.Resolve(matcher(g, xid, anyXid).Match(node), now.Add(40*time.Minute), time.Time{}).Action).To(Equal(replace))
	})
}

func TestRepairPoliciesStart(t *testing.T) {
	t.Run("When settings are accepted, Karpenter should start with them", func(t *testing.T) {
		g := NewWithT(t)
		random := rand.New(rand.NewSource(1))
		durations := []time.Duration{-time.Second, 0, time.Second, time.Minute, 10 * time.Minute, 168 * time.Hour, 169 * time.Hour}
		pick := func(n int) int { return random.Intn(n) }
		accepted, refused := 0, 0
		for range 20000 {
			policies := make([]v1alpha1.RepairPolicy, pick(4))
			for i := range policies {
				policies[i] = v1alpha1.RepairPolicy{
					ConditionType:      []corev1.NodeConditionType{corev1.NodeReady, "KernelReady", "GPUHealthy", "example.com/Disk", "", "a b"}[pick(6)],
					ConditionStatus:    []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown, "", "Bad"}[pick(5)],
					Reason:             []string{"", ".*", "^Xid(79|119)$", "(", "(?i)lockup", "a{1001}", "(?!x)", "\xff"}[pick(8)],
					TolerationDuration: metav1.Duration{Duration: durations[pick(len(durations))]},
					Priority:           []int{-1, 0, 1, 100, 101}[pick(5)],
					Action:             []v1alpha1.RepairAction{"", v1alpha1.RepairReplace, v1alpha1.RepairReboot, "RebootNode"}[pick(4)],
				}
				if pick(2) == 0 {
					policies[i].TerminationGracePeriod = &metav1.Duration{Duration: durations[pick(len(durations))]}
				}
			}
			if len(v1alpha1.RepairPolicyProblems(policies)) > 0 {
				refused++
				continue
			}
			accepted++
			matcher(g, policies...)
		}
		g.Expect(accepted).To(BeNumerically(">", 1000))
		g.Expect(refused).To(BeNumerically(">", 1000))
	})
}
