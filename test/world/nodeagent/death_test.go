// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// agentOnly, set to a kubeconfig, makes the test program a mere agent that a test can kill.
const agentOnly = "NODEAGENT_TEST_AGENT_ONLY"

const mortalNode = "mortal"

func runAgentOnly() int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var err error
	if config, err = clientcmd.BuildConfigFromFlags("", os.Getenv(agentOnly)); err != nil {
		return fail(err)
	}
	if _, err = startAgent(context.Background(), mortalNode, os.Getenv("NODEAGENT_TEST_DIR")); err != nil {
		return fail(err)
	}
	fmt.Println("ready")
	select {}
}

// writeKubeconfig writes the test's admin access.
func writeKubeconfig(t *testing.T) string {
	t.Helper()
	file := clientcmdapi.NewConfig()
	file.Clusters["c"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	file.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}
	file.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	file.CurrentContext = "x"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		t.Fatal(err)
	}
	return path
}

func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z") // a corpse that nobody has fetched
}

func numberIn(g Gomega, path, pattern string) int {
	content, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	found := regexp.MustCompile(pattern).FindSubmatch(content)
	g.Expect(found).To(HaveLen(2), "%s in %s", pattern, content)
	number, err := strconv.Atoi(string(found[1]))
	g.Expect(err).NotTo(HaveOccurred())
	return number
}

func TestDeathOfTheAgent(t *testing.T) {
	if runtime.GOOS != "linux" {
		return // nothing to show: only Linux ties processes to their parent's life
	}
	g, namespace := NewWithT(t), newNamespace(t)
	dir := filepath.Join(buildDir, "mortal")
	mortal := exec.Command(os.Args[0])
	mortal.Env = append(os.Environ(), agentOnly+"="+writeKubeconfig(t), "NODEAGENT_TEST_DIR="+dir)
	mortal.Stderr = os.Stderr
	output, err := mortal.StdoutPipe()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(mortal.Start()).To(Succeed())
	lines := bufio.NewScanner(output)
	for lines.Scan() && lines.Text() != "ready" {
	}
	pod := testPod(namespace, "orphan", func(pod *corev1.Pod) {
		pod.Spec.NodeName = mortalNode
		pod.Spec.Containers[0].Args = append(pod.Spec.Containers[0].Args, "--child")
	})
	create(t, pod)
	var second *Agent
	g.Eventually(status(t, pod), waitLong, waitPoll).Should(beReady())
	logs, err := filepath.Glob(filepath.Join(dir, "logs", namespace+"_orphan_*", "main", "0.log"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(logs).To(HaveLen(1))
	container, grandchild := numberIn(g, logs[0], `testpod (\d+)`), numberIn(g, logs[0], `child (\d+)`)
	g.Expect(alive(container)).To(BeTrue())

	t.Run("When the agent's process is killed, it should take its containers along", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(mortal.Process.Kill()).To(Succeed())
		_ = mortal.Wait()
		g.Eventually(func() bool { return alive(container) }, waitLong, waitPoll).Should(BeFalse())
	})
	t.Run("When the next agent starts, it should end what was left and go on with the pods", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(alive(grandchild)).To(BeTrue())
		var err error
		second, err = startAgent(context.Background(), mortalNode, dir)
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(func() bool { return alive(grandchild) }, waitLong, waitPoll).Should(BeFalse())
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(SatisfyAll(beReady(),
			WithTransform(func(s corev1.PodStatus) int32 { return mainContainer(s).RestartCount }, Equal(int32(1)))))
		g.Expect(mainContainer(status(t, pod)()).LastTerminationState.Terminated.Reason).To(Equal(reasonUnknown))
	})
	t.Run("When two agents want one directory, it should refuse the second", func(t *testing.T) {
		g, before := NewWithT(t), second.Processes()
		_, err := startAgent(t.Context(), "other", dir)
		g.Expect(err).To(MatchError(ContainSubstring("another node agent uses")))
		g.Expect(alive(before[0].PID)).To(BeTrue())
		g.Expect(second.Processes()).To(Equal(before))
	})
	t.Run("When the agent stops, it should leave no process and a node that isn't ready", func(t *testing.T) {
		g := NewWithT(t)
		processes := second.Processes()
		g.Expect(processes).To(HaveLen(1))
		newLog := second.LogPath(key(pod), "main")
		child := numberIn(g, newLog, `child (\d+)`)
		g.Expect(second.Stop(t.Context())).To(Succeed())
		g.Expect(alive(processes[0].PID)).To(BeFalse())
		g.Eventually(func() bool { return alive(child) }, waitLong, waitPoll).Should(BeFalse())
		g.Expect(nodeReady(t, mortalNode)()).To(Equal(corev1.ConditionFalse))
		g.Expect(status(t, pod)()).NotTo(beReady())
		g.Expect(status(t, pod)().Phase).To(Equal(corev1.PodRunning))
	})
	third, err := startAgent(context.Background(), mortalNode, dir) // for the pod's deletion
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(third.Stop(context.Background())).To(Succeed()) })
	deleteAndWait(t, pod)
}
