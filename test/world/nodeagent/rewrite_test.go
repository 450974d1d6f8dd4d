// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/autonode-io/autonode/test/world/port"
)

var testRewriter = newRewriter(podPorts{8080: 10001, 8081: 10002, 443: 8080}, []mount{
	{"/etc/karpenter", "/host/volumes/outer"},
	{"/etc/karpenter/guest", "/host/volumes/guest"},
	{"/tmp", "/host/volumes/tmp"},
})

func TestRewriteEnv(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"When it is a declared port, it should become the port of this machine":    {"8080", "10001"},
		"When it is another number, it should stay":                                {"18080", "18080"},
		"When a number is only written like a port, it should stay":                {"08080", "08080"},
		"When it is a listen address, its port should be replaced":                 {":8081", ":10002"},
		"When a port's replacement is declared too, it should be replaced once":    {":443", ":8080"},
		"When it is an address of loopback, its port should be replaced":           {"127.0.0.1:8080", "127.0.0.1:10001"},
		"When it is an IPv6 address of any interface, its port should be replaced": {"[::]:8080", "[::]:10001"},
		"When addresses form a list, each should be replaced":                      {":8080,:8081,localhost:8080", ":10001,:10002,localhost:10001"},
		"When it is a URL of loopback, its port should be replaced":                {"http://localhost:8080/metrics", "http://localhost:10001/metrics"},
		"When it is another host's address, it should stay":                        {"registry.example:8080", "registry.example:8080"},
		"When it is another IP's address, it should stay":                          {"10.0.0.1:8080", "10.0.0.1:8080"},
		"When a longer number begins with the port, it should stay":                {":80800", ":80800"},
		"When it is a mount path, it should be the host's":                         {"/etc/karpenter/guest/kubeconfig", "/host/volumes/guest/kubeconfig"},
		"When mounts nest, the inner one should win":                               {"/etc/karpenter/guest", "/host/volumes/guest"},
		"When only a part of a path element matches, it should stay":               {"/etc/karpenter2/x", "/etc/karpenter2/x"},
		"When the path lies in the middle of another, it should stay":              {"/opt/etc/karpenter/x", "/opt/etc/karpenter/x"},
		"When paths form a list, each should be replaced":                          {"/tmp:/etc/karpenter/a:/usr", "/host/volumes/tmp:/host/volumes/outer/a:/usr"},
		"When it is a file URL, its path should be replaced":                       {"file:///tmp/x", "file:///host/volumes/tmp/x"},
		"When it is JSON, a path in it should be replaced":                         {`{"dir":"/tmp/x"}`, `{"dir":"/host/volumes/tmp/x"}`},
	} {
		t.Run(name, func(t *testing.T) {
			if got := testRewriter.env(c.in); got != c.want {
				t.Errorf("env(%q) = %q, want %q", c.in, got, c.want)
			}
		})
	}
}

func TestRewriteArgs(t *testing.T) {
	for name, c := range map[string]struct{ in, want []string }{
		"When a flag's value is a port, it should be replaced":             {[]string{"--port=8080"}, []string{"--port=10001"}},
		"When a port follows a flag, it should be replaced":                {[]string{"-p", "8080"}, []string{"-p", "10001"}},
		"When a number follows no flag, it should stay":                    {[]string{"scale", "8080"}, []string{"scale", "8080"}},
		"When a number follows a flag with a value, it should stay":        {[]string{"--a=b", "8080"}, []string{"--a=b", "8080"}},
		"When a flag's value is a listen address, it should be replaced":   {[]string{"--bind-address=:8081"}, []string{"--bind-address=:10002"}},
		"When a flag's value is a mount path, it should be replaced":       {[]string{"--guest-kubeconfig=/etc/karpenter/guest/kubeconfig"}, []string{"--guest-kubeconfig=/host/volumes/guest/kubeconfig"}},
		"When a flag's value is another cluster's address, it should stay": {[]string{"--server=https://10.1.2.3:8080"}, []string{"--server=https://10.1.2.3:8080"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, testRewriter.args(c.in)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPodPorts(t *testing.T) {
	container := &corev1.Container{Ports: []corev1.ContainerPort{{ContainerPort: 8080}}}
	t.Run("When a port is declared, it should get one of this machine and keep it until it is released", func(t *testing.T) {
		g, claims, ports := NewWithT(t), port.New(), podPorts{}
		t.Cleanup(claims.Close)
		g.Expect(ports.assign(claims, container)).To(Succeed())
		got := ports.actual(8080)
		g.Expect(got).NotTo(Equal(int32(8080)))
		g.Expect(ports.actual(7)).To(Equal(int32(7)), "an undeclared port is itself")
		g.Expect(ports.assign(claims, container)).To(Succeed())
		g.Expect(ports.actual(8080)).To(Equal(got))
		ports.release(claims)
		g.Expect(ports).To(BeEmpty())
	})
}
