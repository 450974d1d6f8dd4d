// SPDX-License-Identifier: Apache-2.0

package clusterstatus

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/autonode-io/autonode/internal/message"
)

// TroubleAmong returns why the first failing pod doesn't run, or "".
func TroubleAmong(pods []corev1.Pod) string {
	for i := range pods {
		if trouble := PodTrouble(&pods[i]); trouble != "" {
			return fmt.Sprintf("Pod %s: %s", pods[i].Name, trouble)
		}
	}
	return ""
}

// maxTrouble limits a quote of a pod's status, in bytes.
const maxTrouble = 300

// PodTrouble returns why a pod doesn't run, or "". It leaves out values that change all the time, such as restart
// counts.
func PodTrouble(pod *corev1.Pod) string {
	if !pod.DeletionTimestamp.IsZero() {
		return ""
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return join(condition.Reason, condition.Message)
		}
	}
	for _, container := range pod.Status.ContainerStatuses {
		if waiting := container.State.Waiting; waiting != nil && waiting.Reason != "" && waiting.Reason != "ContainerCreating" &&
			waiting.Reason != "PodInitializing" {
			// A crashed container's last message is more useful than its back-off.
			if ended := container.LastTerminationState.Terminated; ended != nil {
				return join(waiting.Reason, fmt.Sprintf("exit code %d", ended.ExitCode), lastLine(ended.Message))
			}
			return join(waiting.Reason, waiting.Message)
		}
	}
	return ""
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}

func join(parts ...string) string {
	parts = slices.DeleteFunc(parts, func(s string) bool { return s == "" })
	return message.Cut(strings.Join(parts, ": "), maxTrouble)
}
