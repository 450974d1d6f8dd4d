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

// stateOf has a word for each state that a container can be in.
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
	for name, c := range map[string]struct {
		state       string
		terminating bool
		before      corev1.PodPhase
		phase       corev1.PodPhase
		ready       bool
	}{
		"When the container is being created, it should be pending":        {state: "creating", phase: corev1.PodPending},
		"When the container runs, it should be running":                    {state: "running", phase: corev1.PodRunning},
		"When the container is ready, it should be ready":                  {state: "ready", phase: corev1.PodRunning, ready: true},
		"When the container is between two runs, it should be running":     {state: "backoff", phase: corev1.PodRunning},
		"When the container has ended and comes back, it should run":       {state: "failed", phase: corev1.PodRunning},
		"When a deleted pod never ran, it should stay pending":             {state: "creating", terminating: true, phase: corev1.PodPending},
		"When a deleted pod's container ends well, it should succeed":      {state: "succeeded", terminating: true, phase: corev1.PodSucceeded},
		"When a deleted pod's container was killed, it should have failed": {state: "failed", terminating: true, phase: corev1.PodFailed},
		"When it has failed once, it should never be anything else":        {state: "ready", before: corev1.PodFailed, phase: corev1.PodFailed},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Generation: 3}, Status: corev1.PodStatus{Phase: c.before}}
			got := podStatus(pod, observation{mounted: true, terminating: c.terminating, container: stateOf(c.state)}, time.Now())
			if got.Phase != c.phase {
				t.Errorf("phase is %s, want %s", got.Phase, c.phase)
			}
			for kind, want := range map[corev1.PodConditionType]bool{
				corev1.PodInitialized: true, corev1.PodReady: c.ready, corev1.ContainersReady: c.ready, corev1.PodScheduled: true,
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
	seen := observation{mounted: true, started: time.Unix(100, 0), container: stateOf("ready")}
	t.Run("When another's condition is there, it should stay, and times should only move with a change", func(t *testing.T) {
		gate := corev1.PodCondition{Type: "example.com/gate", Status: corev1.ConditionTrue, LastTransitionTime: metav1.Unix(50, 0)}
		pod := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{gate}}}
		pod.Status = podStatus(pod, seen, time.Unix(200, 0))
		again := podStatus(pod, seen, time.Unix(300, 0))
		if diff := cmp.Diff(pod.Status, again); diff != "" {
			t.Errorf("a second computation differs: %s", diff)
		}
		if diff := cmp.Diff(gate, again.Conditions[0]); diff != "" {
			t.Errorf("the gate's condition changed: %s", diff)
		}
		seen.container = stateOf("running")
		after := podStatus(pod, seen, time.Unix(400, 0))
		ready := after.Conditions[conditionIndex(after.Conditions, corev1.PodReady)]
		if ready.Status != corev1.ConditionFalse || !ready.LastTransitionTime.Equal(ptr.To(metav1.Unix(400, 0))) || ready.Reason != reasonContainersNotReady {
			t.Errorf("got %+v", ready)
		}
	})
}
