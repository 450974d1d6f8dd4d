// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

func TestTraffic(t *testing.T) {
	const (
		joined = `{"stage":"ResponseComplete","verb":"create","user":{"username":"system:node:NAME"},"userAgent":"kubelet","objectRef":{"resource":"nodes"},"responseStatus":{"code":201}}` + "\n"
		status = `{"stage":"ResponseComplete","verb":"patch","user":{"username":"system:kube-controller-manager"},` +
			`"userAgent":"kube-controller-manager/v1.36.3 (linux/amd64) kubernetes/0000000/system:serviceaccount:kube-system:node-controller",` +
			`"objectRef":{"resource":"nodes","subresource":"status"},"responseStatus":{"code":409}}` + "\n"
		health  = `{"stage":"ResponseComplete","verb":"get","requestURI":"/healthz","responseStatus":{"code":200}}` + "\n"
		began   = `{"stage":"ResponseStarted","verb":"watch","userAgent":"karpenter/v1 (linux/amd64)","objectRef":{"resource":"pods"},"responseStatus":{"code":200}}` + "\n"
		watched = `{"stage":"ResponseComplete","verb":"watch","userAgent":"karpenter/v1 (linux/amd64)","objectRef":{"resource":"pods"},"responseStatus":{"code":200}}` + "\n"
	)
	t.Run("When objects are requested, it should count what differs in more than the object's name", func(t *testing.T) {
		g := NewWithT(t)
		path := filepath.Join(t.TempDir(), "audit.log")
		tail, traffic := Tail{Path: path}, Traffic{}
		g.Expect(tail.Each(traffic.Add)).To(Succeed())
		g.Expect(traffic).To(BeEmpty())
		g.Expect(tail.Size()).To(BeZero())

		first := strings.ReplaceAll(joined, "NAME", "a") + strings.ReplaceAll(joined, "NAME", "b") + status + health + began + watched
		g.Expect(os.WriteFile(path, []byte(first+status[:20]), 0o600)).To(Succeed())
		g.Expect(tail.Each(traffic.Add)).To(Succeed())
		node := Request{User: "system:node:*", Agent: "kubelet", Verb: "create", Resource: "nodes", Code: 201}
		conflict := Request{
			User: "system:kube-controller-manager", Agent: "kube-controller-manager node-controller", Verb: "patch", Resource: "nodes/status", Code: 409,
		}
		g.Expect(traffic).To(Equal(Traffic{node: 2, conflict: 1, {Agent: "karpenter", Verb: "watch", Resource: "pods", Code: 200}: 1}))
		g.Expect(traffic.Sorted()[0]).To(Equal(node))
		g.Expect(traffic.Total(Request.Conflict)).To(Equal(1))

		g.Expect(os.WriteFile(path, []byte(first+status), 0o600)).To(Succeed())
		again := Traffic{}
		g.Expect(tail.Each(again.Add)).To(Succeed())
		g.Expect(again).To(Equal(Traffic{conflict: 1}))
		g.Expect(tail.Size()).To(BeEquivalentTo(len(first + status)))
	})
}
