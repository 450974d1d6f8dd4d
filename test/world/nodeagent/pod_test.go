// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func TestReadiness(t *testing.T) {
	g, namespace := NewWithT(t), newNamespace(t)
	t.Run("When the program becomes unready, it should say so without a restart", func(t *testing.T) {
		pod := create(t, testPod(namespace, "unready", func(pod *corev1.Pod) {
			pod.Spec.Containers[0].ReadinessProbe.FailureThreshold = 1
		}))
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(beReady())
		g.Expect(ask(pod, "/unready")).Error().NotTo(HaveOccurred())
		g.Eventually(status(t, pod), waitLong, waitPoll).ShouldNot(beReady())
		g.Expect(ask(pod, "/ready")).Error().NotTo(HaveOccurred())
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(beReady())
		g.Expect(mainContainer(status(t, pod)()).RestartCount).To(BeZero())
	})
}

func TestStop(t *testing.T) {
	g, namespace := NewWithT(t), newNamespace(t)
	const node = "mortal"
	mortal, err := startAgent(t.Context(), node, filepath.Join(buildDir, node))
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(mortal.Stop)
	pod := testPod(namespace, "left", func(pod *corev1.Pod) {
		pod.Spec.NodeName = node
		pod.Spec.Containers[0].Args = append(pod.Spec.Containers[0].Args, "--linger=1h")
	})
	_, err = management.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(status(t, pod), waitLong, waitPoll).Should(beReady())
	t.Run("When the agent stops, it should leave no process and the pod's object as it is", func(t *testing.T) {
		g := NewWithT(t)
		processes := mortal.Processes()
		g.Expect(processes).To(HaveLen(1))
		mortal.Stop()
		g.Expect(syscall.Kill(processes[0].PID, 0)).To(MatchError(syscall.ESRCH))
		g.Expect(mortal.Processes()).To(BeEmpty())
		g.Expect(status(t, pod)()).To(beReady())
	})
	g.Expect(management.CoreV1().Pods(namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})).To(Succeed())
}

func TestRestarts(t *testing.T) {
	g, namespace := NewWithT(t), newNamespace(t)
	t.Run("When a container crashes again and again, it should restart it with back-off and keep its exit code and last words", func(t *testing.T) {
		pod := create(t, testPod(namespace, "crash", func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Args = []string{"--exit=7"}
			pod.Spec.Containers[0].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
		}))
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(And(
			WithTransform(waitingReason, Equal("CrashLoopBackOff")), WithTransform(restarts, BeNumerically(">=", 2))))
		got := status(t, pod)()
		g.Expect(got.Phase).To(Equal(corev1.PodRunning))
		g.Expect(mainContainer(got).LastTerminationState.Terminated).To(HaveValue(And(
			HaveField("ExitCode", int32(7)), HaveField("Reason", "Error"), HaveField("Message", ContainSubstring("testpod")))))
		g.Eventually(events(t, pod), waitLong, waitPoll).Should(ContainElement("BackOff"))
	})
	t.Run("When the liveness probe fails, it should restart the container", func(t *testing.T) {
		pod := create(t, testPod(namespace, "sick", func(pod *corev1.Pod) {
			pod.Spec.Containers[0].LivenessProbe = &corev1.Probe{
				InitialDelaySeconds: 1, PeriodSeconds: 1, FailureThreshold: 2,
				ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080)}},
			}
		}))
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(beReady())
		g.Expect(ask(pod, "/sick")).Error().NotTo(HaveOccurred())
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(And(beReady(), WithTransform(restarts, Equal(int32(1)))))
		g.Eventually(events(t, pod), waitLong, waitPoll).Should(ContainElements("Unhealthy", "Killing"))
	})
}

func TestUnknownPort(t *testing.T) {
	t.Run("When a probe names no port of the container, it should say so", func(t *testing.T) {
		pod := create(t, testPod(newNamespace(t), "portless", func(pod *corev1.Pod) {
			pod.Spec.Containers[0].ReadinessProbe.HTTPGet.Port = portNamed("none")
		}))
		NewWithT(t).Eventually(events(t, pod), waitLong, waitPoll).Should(ContainElement("Unhealthy"))
	})
}

func TestDeletion(t *testing.T) {
	namespace := newNamespace(t)
	for name, c := range map[string]struct {
		linger  string
		seconds *int64
		want    OmegaMatcher // of the log
	}{
		"When a pod is deleted, its program should end within the grace period, and then the pod": {"300ms", nil, ContainSubstring("bye")},
		"When the program outlives the grace period, it should be killed": {
			"1h", ptr.To[int64](1), And(ContainSubstring("terminating"), Not(ContainSubstring("bye"))),
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			pod := create(t, testPod(namespace, "lingers-"+c.linger, func(pod *corev1.Pod) {
				pod.Spec.Containers[0].Args = append(pod.Spec.Containers[0].Args, "--linger="+c.linger)
			}))
			g.Eventually(status(t, pod), waitLong, waitPoll).Should(beReady())
			log := agent.LogPath(key(pod), "main")
			g.Expect(management.CoreV1().Pods(namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: c.seconds})).To(Succeed())
			g.Eventually(status(t, pod), waitLong, waitPoll).Should(HaveField("Message", ContainSubstring("not found")))
			g.Expect(os.ReadFile(log)).To(c.want)
		})
	}
}
