// SPDX-License-Identifier: Apache-2.0

package karpenter

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/controllers/nodeclaim"
)

func TestIsReplacement(t *testing.T) {
	command := &disruption.Command{Replacements: []*disruption.Replacement{{Name: "general-2"}, {Name: "general-3"}}}
	queue := &disruption.Queue{ProviderIDToCommand: map[string]*disruption.Command{"cloud://1": command, "cloud://2": {}}}
	for name, want := range map[string]bool{"general-1": false, "general-2": true, "general-3": true, "": false} {
		t.Run("When a NodeClaim is named "+name+", it should be one that replaces a running node only if a command names it", func(t *testing.T) {
			if got := isReplacement(queue, name); got != want {
				t.Errorf("got %t, want %t", got, want)
			}
		})
	}
}

func TestLaunchEvents(t *testing.T) {
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)},
			Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}},
		}
	}
	nodeClaim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "general-1"}}
	for name, tc := range map[string]struct {
		reason string
		want   []string
	}{
		"When a launch fails, it should tell the pods that were planned on it, and no others": {nodeclaim.InsufficientCapacityReason, []string{"no", "NodeClaim general-1: no"}},
		"When something else happens to a NodeClaim, it should tell no pod":                   {nodeclaim.InterruptedReason, []string{"no"}},
	} {
		t.Run(name, func(t *testing.T) {
			recorder := &environment.Recorder{}
			guest := fake.NewClientBuilder().WithObjects(pod("web"), pod("other"), pod("new")).WithIndex(&corev1.Pod{}, "spec.nodeName", func(pod client.Object) []string {
				return []string{pod.(*corev1.Pod).Spec.NodeName}
			}).Build()
			planned := func(pod types.NamespacedName) string {
				return map[string]string{"web": "general-1", "other": "general-2"}[pod.Name]
			}
			ignored := func(context.Context, *karpv1.NodeClaim, string) {}
			launchEvents{recorder, guest, planned, ignored, func(*karpv1.NodeClaim, string, string) {}}.Publish(events.Event{InvolvedObject: nodeClaim, Reason: tc.reason, Message: "no"})
			NewWithT(t).Expect(recorder.Messages()).To(Equal(tc.want))
		})
	}
}

func TestUpgradeFailures(t *testing.T) {
	nodeClaim, pod := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "general-1", UID: "1"}}, &corev1.Pod{}
	for reason, want := range map[string][]string{
		nodeclaim.LaunchTimeoutReason: {"general-1/LaunchTimeout"}, nodeclaim.RegistrationTimeoutReason: {"general-1/RegistrationTimeout"},
		nodeclaim.MachineFailedReason: {"general-1/MachineFailed"}, nodeclaim.MisconfiguredReason: {"general-1/Misconfigured"},
		nodeclaim.MachineUnhealthyReason:     {"general-1/MachineUnhealthy"},
		nodeclaim.InsufficientCapacityReason: nil, nodeclaim.InterruptedReason: nil, nodeclaim.InstanceTerminatedReason: nil,
	} {
		t.Run("When the event of a NodeClaim is "+reason+", the upgrade should count it if the release may be at fault", func(t *testing.T) {
			var failed []string
			guest := fake.NewClientBuilder().WithIndex(&corev1.Pod{}, "spec.nodeName", func(client.Object) []string { return nil }).Build()
			fail := func(_ context.Context, nodeClaim *karpv1.NodeClaim, reason string) {
				failed = append(failed, nodeClaim.Name+"/"+reason)
			}
			launchEvents{&environment.Recorder{}, guest, func(types.NamespacedName) string { return "" }, fail, func(*karpv1.NodeClaim, string, string) {}}.Publish(
				events.Event{InvolvedObject: nodeClaim, Reason: reason}, events.Event{InvolvedObject: pod, Reason: reason})
			NewWithT(t).Expect(failed).To(Equal(want))
		})
	}
}

// because is a method of a reason.
type because struct {
	disruption.Method
	reason karpv1.DisruptionReason
}

func (b because) Reason() karpv1.DisruptionReason { return b.reason }
