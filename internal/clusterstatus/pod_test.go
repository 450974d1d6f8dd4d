// SPDX-License-Identifier: Apache-2.0

package clusterstatus

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestPodTrouble(t *testing.T) {
	waiting := func(reason, message string) corev1.PodStatus {
		return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}},
		}}}
	}
	crashed := waiting("CrashLoopBackOff", "back-off 20s restarting failed container")
	crashed.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{
		ExitCode: 1, Message: "starting\nreading the guest's kubeconfig: no such file\n",
	}
	for _, test := range []struct {
		name   string
		status corev1.PodStatus
		want   string
	}{
		{name: "When a pod starts, it should not be in trouble", status: waiting("ContainerCreating", "")},
		{name: "When its image can't be pulled, it should say so", status: waiting("ErrImagePull", "401 Unauthorized"), want: "ErrImagePull: 401 Unauthorized"},
		{name: "When it crashes, it should say its last words", status: crashed, want: "CrashLoopBackOff: exit code 1: reading the guest's kubeconfig: no such file"},
		{
			name: "When it fits nowhere, it should say why",
			status: corev1.PodStatus{Conditions: []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/1 nodes are available",
			}}},
			want: "Unschedulable: 0/1 nodes are available",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := PodTrouble(&corev1.Pod{Status: test.status}); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
