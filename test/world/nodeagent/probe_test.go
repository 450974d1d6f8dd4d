// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func TestThresholds(t *testing.T) {
	for name, c := range map[string]struct {
		probe   corev1.Probe
		results string // + and -
		want    string // decisions: +, - or .
	}{
		"When failures reach the threshold, it should decide":        {corev1.Probe{FailureThreshold: 3}, "--+---", "..+..-"},
		"When more successes are needed, it should wait for them":    {corev1.Probe{SuccessThreshold: 2, FailureThreshold: 1}, "+-++", ".-.+"},
		"When a result holds, every further result should repeat it": {corev1.Probe{FailureThreshold: 1}, "++--", "++--"},
	} {
		t.Run(name, func(t *testing.T) {
			var count thresholds
			got := ""
			for _, result := range c.results {
				decided, good := count.add(result == '+', &c.probe)
				switch {
				case !decided:
					got += "."
				case good:
					got += "+"
				default:
					got += "-"
				}
			}
			if got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestTermination(t *testing.T) {
	namespace := newNamespace(t)
	t.Run("When a container fails, its state should have its exit code and its last words", func(t *testing.T) {
		g := NewWithT(t)
		pod := create(t, testPod(namespace, "talkative", func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Args = []string{"--exit=5"}
			pod.Spec.Containers[0].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
		}))
		last := func(s corev1.PodStatus) corev1.ContainerStateTerminated {
			return ptr.Deref(mainContainer(s).LastTerminationState.Terminated, corev1.ContainerStateTerminated{})
		}
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(WithTransform(last, And(
			HaveField("ExitCode", int32(5)), HaveField("Reason", "Error"), HaveField("Message", ContainSubstring("testpod")))))
	})
	t.Run("When a probe names no port of the container, it should say so", func(t *testing.T) {
		pod := create(t, testPod(namespace, "portless", func(pod *corev1.Pod) {
			pod.Spec.Containers[0].ReadinessProbe.HTTPGet.Port = portNamed("none")
		}))
		NewWithT(t).Eventually(events(t, pod), waitLong, waitPoll).Should(ContainElement("Unhealthy"))
	})
}
