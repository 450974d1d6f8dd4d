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

func TestPodRuns(t *testing.T) {
	g, namespace := NewWithT(t), newNamespace(t)
	t.Run("When a pod is bound to the node, it should run and become ready", func(t *testing.T) {
		pod := create(t, testPod(namespace, "runs"))
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(beReady())
		got := status(t, pod)()
		g.Expect(got.Phase).To(Equal(corev1.PodRunning))
		g.Expect(got.PodIP).To(Equal("127.0.0.1"))
		g.Expect(got.ObservedGeneration).To(Equal(pod.Generation))
		g.Expect(mainContainer(got).ImageID).To(Equal(testImage))
		g.Expect(mainContainer(got).Started).To(HaveValue(BeTrue()))
		g.Expect(mainContainer(got).ContainerID).To(HavePrefix("process://"))
		for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.ContainersReady} {
			g.Expect(condition(kind)(got)).To(Equal(corev1.ConditionTrue), string(kind))
		}
		g.Eventually(events(t, pod), waitLong, waitPoll).Should(ContainElements("Pulled", "Created", "Started"))
	})
	t.Run("When two pods declare the same port, it should give each its own", func(t *testing.T) {
		first, second := create(t, testPod(namespace, "first")), create(t, testPod(namespace, "second"))
		g.Eventually(status(t, first), waitLong, waitPoll).Should(beReady())
		g.Eventually(status(t, second), waitLong, waitPoll).Should(beReady())
		g.Expect(askSelf(t, first).PID).NotTo(Equal(askSelf(t, second).PID))
	})
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

func TestSecretUpdate(t *testing.T) {
	g, namespace := NewWithT(t), newNamespace(t)
	secret, err := management.CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string][]byte{"key": []byte("one")},
	}, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	t.Run("When a mounted Secret changes, it should change the file under the running pod", func(t *testing.T) {
		pod := create(t, testPod(namespace, "secret", func(pod *corev1.Pod) {
			pod.Spec.Volumes = []corev1.Volume{{Name: "settings", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "settings"}}}}
			container := &pod.Spec.Containers[0]
			container.VolumeMounts = []corev1.VolumeMount{{Name: "settings", MountPath: "/etc/settings"}}
			container.Env = []corev1.EnvVar{{Name: "SETTINGS", Value: "/etc/settings/key"}}
		}))
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(beReady())
		path := askSelf(t, pod).env("SETTINGS")
		g.Expect(ask(pod, "/file?path="+path)).To(Equal("one"))
		secret.Data["key"] = []byte("two")
		_, err := management.CoreV1().Secrets(namespace).Update(t.Context(), secret, metav1.UpdateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(func() (string, error) { return ask(pod, "/file?path="+path) }, waitLong, waitPoll).Should(Equal("two"))
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
	t.Run("When a container crashes again and again, it should restart it with back-off", func(t *testing.T) {
		pod := create(t, testPod(namespace, "crash", func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Args = []string{"--exit=7"}
		}))
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(SatisfyAll(
			WithTransform(waitingReason, Equal("CrashLoopBackOff")),
			WithTransform(func(s corev1.PodStatus) int32 { return mainContainer(s).RestartCount }, BeNumerically(">=", 2)),
		))
		got := status(t, pod)()
		g.Expect(got.Phase).To(Equal(corev1.PodRunning))
		g.Expect(mainContainer(got).LastTerminationState.Terminated.ExitCode).To(Equal(int32(7)))
		g.Eventually(events(t, pod), waitLong, waitPoll).Should(ContainElement("BackOff"))
	})
	t.Run("When a container is killed, it should come back", func(t *testing.T) {
		pod := create(t, testPod(namespace, "killed"))
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(beReady())
		g.Expect(agent.Kill(t.Context(), key(pod), "main")).To(Succeed())
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(SatisfyAll(beReady(),
			WithTransform(func(s corev1.PodStatus) int32 { return mainContainer(s).RestartCount }, Equal(int32(1)))))
		g.Expect(mainContainer(status(t, pod)()).LastTerminationState.Terminated.Signal).To(Equal(int32(9)))
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
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(SatisfyAll(beReady(),
			WithTransform(func(s corev1.PodStatus) int32 { return mainContainer(s).RestartCount }, Equal(int32(1)))))
		g.Eventually(events(t, pod), waitLong, waitPoll).Should(ContainElements("Unhealthy", "Killing"))
	})
}

func TestDeletion(t *testing.T) {
	g, namespace := NewWithT(t), newNamespace(t)
	t.Run("When a pod is deleted, it should let the program end within the grace and then remove the pod", func(t *testing.T) {
		pod := create(t, testPod(namespace, "polite", func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Args = append(pod.Spec.Containers[0].Args, "--linger=300ms")
		}))
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(beReady())
		log := agent.LogPath(key(pod), "main")
		g.Expect(management.CoreV1().Pods(namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{})).To(Succeed())
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(WithTransform(func(s corev1.PodStatus) string { return s.Message }, ContainSubstring("not found")))
		g.Expect(os.ReadFile(log)).To(ContainSubstring("bye"))
	})
	t.Run("When the program outlives the grace, it should be killed", func(t *testing.T) {
		pod := create(t, testPod(namespace, "stubborn", func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Args = append(pod.Spec.Containers[0].Args, "--linger=1h")
		}))
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(beReady())
		log := agent.LogPath(key(pod), "main")
		g.Expect(management.CoreV1().Pods(namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](1)})).To(Succeed())
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(WithTransform(func(s corev1.PodStatus) string { return s.Message }, ContainSubstring("not found")))
		g.Expect(os.ReadFile(log)).To(And(ContainSubstring("terminating"), Not(ContainSubstring("bye"))))
	})
}
