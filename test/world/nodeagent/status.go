// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// loopback is the address of every pod and of the node.
const loopback = "127.0.0.1"

// Reasons of pod conditions, as the kubelet gives them.
const (
	reasonContainersNotInitialized = "ContainersNotInitialized"
	reasonContainersNotReady       = "ContainersNotReady"
	reasonPodCompleted             = "PodCompleted"
	reasonPodFailed                = "PodFailed"
	reasonReadinessGatesNotReady   = "ReadinessGatesNotReady"
)

// observation is what the agent knows of a pod, from which the status follows.
type observation struct {
	started time.Time
	// mounted is set once the pod's volumes and ports exist.
	mounted bool
	// terminating is set once the pod is being deleted or has ended, so that no container comes back.
	terminating bool
	init, main  []corev1.ContainerStatus
	// reason and message, when set, say why the pod as a whole failed.
	reason, message string
}

// podStatus computes the status of a pod, from the status that it has, so that what others write and the times of what
// hasn't changed stay.
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
	status.InitContainerStatuses, status.ContainerStatuses = seen.init, seen.main
	status.Phase = podPhase(pod, seen)
	if seen.reason != "" { // else another's stays
		status.Reason, status.Message, status.Phase = seen.reason, seen.message, corev1.PodFailed
	}

	set := func(kind corev1.PodConditionType, verdict verdict) {
		setCondition(&status, pod.Generation, kind, verdict, now)
	}
	if index := conditionIndex(status.Conditions, corev1.PodScheduled); index < 0 {
		set(corev1.PodScheduled, verdict{good: true}) // bound without a scheduler
	}
	set(corev1.PodReadyToStartContainers, verdict{good: seen.mounted && !isTerminal(status.Phase)})
	set(corev1.PodInitialized, initialized(pod, seen.init, status.Phase))
	ready := containersReady(pod, seen, status.Phase)
	set(corev1.ContainersReady, ready)
	set(corev1.PodReady, podReady(pod, ready))
	return status
}

func isTerminal(phase corev1.PodPhase) bool {
	return phase == corev1.PodSucceeded || phase == corev1.PodFailed
}

// verdict is a condition's status with its explanation.
type verdict struct {
	good            bool
	reason, message string
}

func conditionIndex(conditions []corev1.PodCondition, kind corev1.PodConditionType) int {
	return slices.IndexFunc(conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
}

func setCondition(status *corev1.PodStatus, generation int64, kind corev1.PodConditionType, verdict verdict, now time.Time) {
	wanted := corev1.PodCondition{
		Type: kind, Status: corev1.ConditionFalse, Reason: verdict.reason, Message: verdict.message,
		ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(now).Rfc3339Copy(),
	}
	if verdict.good {
		wanted.Status = corev1.ConditionTrue
	}
	index := conditionIndex(status.Conditions, kind)
	if index < 0 {
		status.Conditions = append(status.Conditions, wanted)
		return
	}
	have := status.Conditions[index]
	wanted.LastProbeTime = have.LastProbeTime
	if have.Status == wanted.Status {
		wanted.LastTransitionTime = have.LastTransitionTime
	}
	status.Conditions[index] = wanted
}

// podPhase follows the kubelet's rules.
func podPhase(pod *corev1.Pod, seen observation) corev1.PodPhase {
	if isTerminal(pod.Status.Phase) {
		return pod.Status.Phase // a pod never comes back
	}
	initialized := true
	for i, status := range seen.init {
		sidecar := isSidecar(&pod.Spec.InitContainers[i])
		terminated := status.State.Terminated
		switch {
		case sidecar && (status.Started == nil || !*status.Started):
			initialized = false
		case !sidecar && (terminated == nil || terminated.ExitCode != 0):
			initialized = false
		}
		if !sidecar && terminated != nil && terminated.ExitCode != 0 && (pod.Spec.RestartPolicy == corev1.RestartPolicyNever || seen.terminating) {
			return corev1.PodFailed
		}
	}
	var waiting, running, succeeded, failed int
	for _, status := range seen.main {
		switch {
		case status.State.Running != nil:
			running++
		case status.State.Terminated != nil && status.State.Terminated.ExitCode == 0:
			succeeded++
		case status.State.Terminated != nil:
			failed++
		case status.LastTerminationState.Terminated != nil:
			running++ // between two runs
		default:
			waiting++
		}
	}
	switch {
	case waiting > 0 && seen.terminating && running == 0 && failed+succeeded > 0:
		return corev1.PodFailed
	case waiting > 0, !initialized && running == 0 && succeeded+failed == 0:
		return corev1.PodPending
	case running > 0:
		return corev1.PodRunning
	case failed == 0 && (seen.terminating || pod.Spec.RestartPolicy != corev1.RestartPolicyAlways):
		return corev1.PodSucceeded
	case seen.terminating || pod.Spec.RestartPolicy == corev1.RestartPolicyNever:
		return corev1.PodFailed
	}
	return corev1.PodRunning
}

func isSidecar(container *corev1.Container) bool {
	return container.RestartPolicy != nil && *container.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

func initialized(pod *corev1.Pod, statuses []corev1.ContainerStatus, phase corev1.PodPhase) verdict {
	if phase == corev1.PodSucceeded {
		return verdict{good: true, reason: reasonPodCompleted}
	}
	var incomplete []string
	for i, status := range statuses {
		done := status.State.Terminated != nil && status.State.Terminated.ExitCode == 0
		if isSidecar(&pod.Spec.InitContainers[i]) {
			done = status.Started != nil && *status.Started
		}
		if !done {
			incomplete = append(incomplete, status.Name)
		}
	}
	if len(incomplete) > 0 {
		return verdict{reason: reasonContainersNotInitialized, message: fmt.Sprintf("containers with incomplete status: [%s]", strings.Join(incomplete, " "))}
	}
	return verdict{good: true}
}

func containersReady(pod *corev1.Pod, seen observation, phase corev1.PodPhase) verdict {
	switch phase {
	case corev1.PodSucceeded:
		return verdict{reason: reasonPodCompleted}
	case corev1.PodFailed:
		return verdict{reason: reasonPodFailed}
	}
	var unready []string
	for i, status := range seen.init {
		if isSidecar(&pod.Spec.InitContainers[i]) && !status.Ready {
			unready = append(unready, status.Name)
		}
	}
	for _, status := range seen.main {
		if !status.Ready {
			unready = append(unready, status.Name)
		}
	}
	if len(unready) > 0 {
		return verdict{reason: reasonContainersNotReady, message: fmt.Sprintf("containers with unready status: [%s]", strings.Join(unready, " "))}
	}
	return verdict{good: true}
}

func podReady(pod *corev1.Pod, containers verdict) verdict {
	if !containers.good {
		return containers
	}
	var missing []string
	for _, gate := range pod.Spec.ReadinessGates {
		index := conditionIndex(pod.Status.Conditions, gate.ConditionType)
		if index < 0 || pod.Status.Conditions[index].Status != corev1.ConditionTrue {
			missing = append(missing, fmt.Sprintf("corresponding condition of pod readiness gate %q is not True.", gate.ConditionType))
		}
	}
	if len(missing) > 0 {
		return verdict{reason: reasonReadinessGatesNotReady, message: strings.Join(missing, ", ")}
	}
	return verdict{good: true}
}
