// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// A word for each state that a container can be in.
func stateOf(word string) corev1.ContainerStatus {
	status := corev1.ContainerStatus{Name: "c", Started: ptr.To(false)}
	switch word {
	case "creating":
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: reasonContainerCreating}
	case "backoff":
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: reasonCrashLoopBackOff}
		status.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1}
	case "running":
		status.State.Running, status.Started = &corev1.ContainerStateRunning{}, ptr.To(true)
	case "starting":
		status.State.Running = &corev1.ContainerStateRunning{}
	case "ready":
		status.State.Running, status.Started, status.Ready = &corev1.ContainerStateRunning{}, ptr.To(true), true
	case "succeeded":
		status.State.Terminated = &corev1.ContainerStateTerminated{}
	case "failed":
		status.State.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1}
	}
	return status
}

func TestPodStatus(t *testing.T) {
	const (
		always    = corev1.RestartPolicyAlways
		onFailure = corev1.RestartPolicyOnFailure
		never     = corev1.RestartPolicyNever
	)
	for name, c := range map[string]struct {
		policy      corev1.RestartPolicy
		init, main  []string
		sidecar     bool
		terminating bool
		before      corev1.PodPhase
		phase       corev1.PodPhase
		initialized bool
		ready       bool
	}{
		"When a container is being created, it should be pending":                    {policy: always, main: []string{"ready", "creating"}, phase: corev1.PodPending, initialized: true},
		"When all containers run, it should be running":                              {policy: always, main: []string{"running"}, phase: corev1.PodRunning, initialized: true},
		"When all containers are ready, it should be ready":                          {policy: always, main: []string{"ready", "ready"}, phase: corev1.PodRunning, initialized: true, ready: true},
		"When one container isn't ready, it should not be ready":                     {policy: always, main: []string{"ready", "running"}, phase: corev1.PodRunning, initialized: true},
		"When a container is between two runs, it should be running":                 {policy: always, main: []string{"backoff"}, phase: corev1.PodRunning, initialized: true},
		"When an init container runs, it should be pending":                          {policy: always, init: []string{"running"}, main: []string{"creating"}, phase: corev1.PodPending},
		"When an init container is done, it should be initialized":                   {policy: always, init: []string{"succeeded"}, main: []string{"ready"}, phase: corev1.PodRunning, initialized: true, ready: true},
		"When an init container fails for good, it should have failed":               {policy: never, init: []string{"failed"}, main: []string{"creating"}, phase: corev1.PodFailed},
		"When an init container fails and comes back, it should be pending":          {policy: onFailure, init: []string{"backoff"}, main: []string{"creating"}, phase: corev1.PodPending},
		"When a sidecar starts, it should not be initialized":                        {policy: always, init: []string{"starting"}, sidecar: true, main: []string{"creating"}, phase: corev1.PodPending},
		"When a sidecar isn't ready, it should not be ready":                         {policy: always, init: []string{"running"}, sidecar: true, main: []string{"ready"}, phase: corev1.PodRunning, initialized: true},
		"When all end well and nothing restarts, it should have succeeded":           {policy: onFailure, main: []string{"succeeded", "succeeded"}, phase: corev1.PodSucceeded, initialized: true},
		"When one fails and nothing restarts, it should have failed":                 {policy: never, main: []string{"succeeded", "failed"}, phase: corev1.PodFailed, initialized: true},
		"When one fails and will restart, it should be running":                      {policy: onFailure, main: []string{"succeeded", "failed"}, phase: corev1.PodRunning, initialized: true},
		"When a deleted pod's containers ended well, it should have succeeded":       {policy: always, main: []string{"succeeded"}, terminating: true, phase: corev1.PodSucceeded, initialized: true},
		"When a deleted pod's container was killed, it should have failed":           {policy: always, main: []string{"failed"}, terminating: true, phase: corev1.PodFailed, initialized: true},
		"When it has failed once, it should never be anything else":                  {policy: always, main: []string{"ready"}, before: corev1.PodFailed, phase: corev1.PodFailed, initialized: true},
		"When the agent stops between two runs, it should stay running":              {policy: always, main: []string{"failed"}, phase: corev1.PodRunning, initialized: true},
		"When a deleted pod's container ended beside one never made, it should fail": {policy: always, main: []string{"succeeded", "creating"}, terminating: true, phase: corev1.PodFailed, initialized: true},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Generation: 3}, Spec: corev1.PodSpec{RestartPolicy: c.policy}, Status: corev1.PodStatus{Phase: c.before}}
			seen := observation{mounted: true, terminating: c.terminating}
			for _, word := range c.init {
				container := corev1.Container{Name: "i"}
				if c.sidecar {
					container.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
				}
				pod.Spec.InitContainers = append(pod.Spec.InitContainers, container)
				seen.init = append(seen.init, stateOf(word))
			}
			for _, word := range c.main {
				pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "c"})
				seen.main = append(seen.main, stateOf(word))
			}
			got := podStatus(pod, seen, time.Now())
			if got.Phase != c.phase {
				t.Errorf("phase is %s, want %s", got.Phase, c.phase)
			}
			for kind, want := range map[corev1.PodConditionType]bool{
				corev1.PodInitialized: c.initialized, corev1.PodReady: c.ready, corev1.ContainersReady: c.ready, corev1.PodScheduled: true,
			} {
				if is := condition(kind)(got) == corev1.ConditionTrue; is != want {
					t.Errorf("%s is %t, want %t", kind, is, want)
				}
			}
			if got.ObservedGeneration != 3 {
				t.Errorf("observed generation is %d, want 3", got.ObservedGeneration)
			}
		})
	}
}

func TestPodConditions(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}, ReadinessGates: []corev1.PodReadinessGate{{ConditionType: "example.com/gate"}}}}
	seen := observation{mounted: true, started: time.Unix(100, 0), main: []corev1.ContainerStatus{stateOf("ready")}}
	t.Run("When a readiness gate is missing, containers should be ready but not the pod", func(t *testing.T) {
		got := podStatus(pod, seen, time.Unix(200, 0))
		if condition(corev1.ContainersReady)(got) != corev1.ConditionTrue || condition(corev1.PodReady)(got) != corev1.ConditionFalse {
			t.Errorf("got conditions %v", got.Conditions)
		}
	})
	t.Run("When another's condition is there, it should stay, and times should only move with a change", func(t *testing.T) {
		pod := pod.DeepCopy()
		gate := corev1.PodCondition{Type: "example.com/gate", Status: corev1.ConditionTrue, LastTransitionTime: metav1.Unix(50, 0)}
		pod.Status.Conditions = []corev1.PodCondition{gate}
		pod.Status = podStatus(pod, seen, time.Unix(200, 0))
		again := podStatus(pod, seen, time.Unix(300, 0))
		if diff := cmp.Diff(pod.Status, again); diff != "" {
			t.Errorf("a second computation differs: %s", diff)
		}
		if diff := cmp.Diff(gate, again.Conditions[0]); diff != "" {
			t.Errorf("the gate's condition changed: %s", diff)
		}
		seen.main = []corev1.ContainerStatus{stateOf("running")}
		after := podStatus(pod, seen, time.Unix(400, 0))
		ready := after.Conditions[conditionIndex(after.Conditions, corev1.PodReady)]
		if ready.Status != corev1.ConditionFalse || !ready.LastTransitionTime.Equal(ptr.To(metav1.Unix(400, 0))) || ready.Reason != reasonContainersNotReady {
			t.Errorf("got %+v", ready)
		}
	})
}
