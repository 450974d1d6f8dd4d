// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"fmt"
	"io"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func TestLogs(t *testing.T) {
	namespace := newNamespace(t)
	g, pod := NewWithT(t), create(t, testPod(namespace, "logs"))
	g.Eventually(status(t, pod), waitLong, waitPoll).Should(beReady())
	logs := func(options *corev1.PodLogOptions) (string, error) {
		content, err := management.CoreV1().Pods(namespace).GetLogs(pod.Name, options).DoRaw(t.Context())
		return string(content), err
	}
	t.Run("When the log is requested through the API server, it should be the container's", func(t *testing.T) {
		NewWithT(t).Expect(logs(&corev1.PodLogOptions{})).To(HavePrefix("testpod "))
	})
	t.Run("When part of it is requested, it should be that part", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(logs(&corev1.PodLogOptions{LimitBytes: ptr.To[int64](4)})).To(Equal("test"))
		g.Expect(logs(&corev1.PodLogOptions{TailLines: ptr.To[int64](0)})).To(BeEmpty())
	})
	t.Run("When a log is followed, it should go on until the container ends, and be the previous one then", func(t *testing.T) {
		g := NewWithT(t)
		stream, err := management.CoreV1().Pods(namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Follow: true}).Stream(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		defer stream.Close()
		first := make([]byte, 7)
		_, err = io.ReadFull(stream, first)
		g.Expect(err).NotTo(HaveOccurred())
		_, _ = ask(pod, "/exit?code=4")
		rest, err := io.ReadAll(stream)
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(status(t, pod), waitLong, waitPoll).Should(And(beReady(), WithTransform(restarts, Equal(int32(1)))))
		g.Expect(logs(&corev1.PodLogOptions{Previous: true})).To(Equal(string(first) + string(rest)))
	})
	t.Run("When someone without a certificate makes a request, it should refuse", func(t *testing.T) {
		response, err := probeClient.Get(fmt.Sprintf("https://127.0.0.1:%d/containerLogs/%s/logs/main", agent.logPort, namespace))
		if err == nil {
			response.Body.Close()
		}
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring("certificate")))
	})
}
