// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// loopback is the address of every pod and of the node.
const loopback = "127.0.0.1"

// Reasons of pod conditions: as the kubelet gives them, and our own of a pod that the agent can't run.
const (
	reasonContainersNotReady = "ContainersNotReady"
	reasonPodCompleted       = "PodCompleted"
	reasonPodFailed          = "PodFailed"
	reasonUnsupported        = "Unsupported"
)

// observation has the inputs of a pod's status.
type observation struct {
	started time.Time
	// mounted is set once the pod's volumes exist.
	mounted bool
	// terminating is set once the pod is being deleted or has ended, so that its container doesn't come back.
	terminating bool
	// unsupported is why the pod never starts.
	unsupported string
	container   corev1.ContainerStatus
}

// podStatus computes the status of a pod from the status that it has, so that what others write stays, and the times of
// what hasn't changed.
func podStatus(pod *corev1.Pod, seen observation, now time.Time) corev1.PodStatus {
	status := *pod.Status.DeepCopy()
	status.ObservedGeneration = pod.Generation
	status.HostIP, status.HostIPs = loopback, []corev1.HostIP{{IP: loopback}}
	if seen.mounted {
		status.PodIP, status.PodIPs = loopback, []corev1.PodIP{{IP: loopback}}
	}
	if status.StartTime == nil {
		started := metav1.NewTime(seen.started).Rfc3339Copy()
		status.StartTime = &started
	}
	status.ContainerStatuses = []corev1.ContainerStatus{seen.container}
	status.Phase = podPhase(pod, seen)

	set := func(kind corev1.PodConditionType, good bool, reason, message string) {
		wanted := corev1.PodCondition{
			Type: kind, Status: corev1.ConditionFalse, Reason: reason, Message: message,
			ObservedGeneration: pod.Generation, LastTransitionTime: metav1.NewTime(now).Rfc3339Copy(),
		}
		if good {
			wanted.Status = corev1.ConditionTrue
		}
		setCondition(&status, wanted)
	}
	if conditionIndex(status.Conditions, corev1.PodScheduled) < 0 { // bound without a scheduler
		set(corev1.PodScheduled, true, "", "")
	}
	ready, reason, message := podReady(seen, status.Phase)
	started := seen.mounted && !isTerminal(status.Phase)
	if seen.unsupported != "" {
		set(corev1.PodReadyToStartContainers, false, reason, message)
	} else {
		set(corev1.PodReadyToStartContainers, started, "", "")
	}
	set(corev1.PodInitialized, true, "", "")
	set(corev1.ContainersReady, ready, reason, message)
	set(corev1.PodReady, ready, reason, message)
	return status
}

func isTerminal(phase corev1.PodPhase) bool {
	return phase == corev1.PodSucceeded || phase == corev1.PodFailed
}

func conditionIndex(conditions []corev1.PodCondition, kind corev1.PodConditionType) int {
	return slices.IndexFunc(conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
}

func setCondition(status *corev1.PodStatus, wanted corev1.PodCondition) {
	index := conditionIndex(status.Conditions, wanted.Type)
	if index < 0 {
		status.Conditions = append(status.Conditions, wanted)
		return
	}
	if have := status.Conditions[index]; have.Status == wanted.Status {
		wanted.LastTransitionTime = have.LastTransitionTime
	}
	status.Conditions[index] = wanted
}

// podPhase follows the kubelet's rules for a pod whose container always comes back.
func podPhase(pod *corev1.Pod, seen observation) corev1.PodPhase {
	state := seen.container.State
	switch {
	case isTerminal(pod.Status.Phase):
		return pod.Status.Phase // a pod never comes back
	case state.Running == nil && state.Terminated == nil && seen.container.LastTerminationState.Terminated == nil:
		return corev1.PodPending
	case state.Terminated == nil || !seen.terminating:
		return corev1.PodRunning // perhaps between two runs
	case state.Terminated.ExitCode == 0:
		return corev1.PodSucceeded
	}
	return corev1.PodFailed
}

func podReady(seen observation, phase corev1.PodPhase) (ready bool, reason, message string) {
	switch {
	case phase == corev1.PodSucceeded:
		return false, reasonPodCompleted, ""
	case phase == corev1.PodFailed:
		return false, reasonPodFailed, ""
	case seen.unsupported != "":
		return false, reasonUnsupported, seen.unsupported
	case !seen.container.Ready:
		return false, reasonContainersNotReady, fmt.Sprintf("containers with unready status: [%s]", seen.container.Name)
	}
	return true, "", ""
}
