// SPDX-License-Identifier: Apache-2.0

package kubeconfig_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/autonode-io/autonode/operator/kubeconfig"
)

// What is refused, and that it reaches nothing, is in test/hostile.
func TestConfig(t *testing.T) {
	access := &kubeconfig.Access{Server: "https://api.example.com", ServerName: "other.example.com", Token: "t"}

	t.Run("When a token is in a file and there is a proxy, the copy should name both and hold no token", func(t *testing.T) {
		g := NewWithT(t)
		content, err := access.Config("/tmp/token", "http://127.0.0.1:1")
		g.Expect(err).NotTo(HaveOccurred())
		config, err := clientcmd.Load(content)
		g.Expect(err).NotTo(HaveOccurred())
		user, cluster := config.AuthInfos["operator"], config.Clusters["guest"]
		g.Expect(user.TokenFile).To(Equal("/tmp/token"))
		g.Expect(user.Token).To(BeEmpty())
		g.Expect(cluster.Server).To(Equal("https://api.example.com"))
		g.Expect(cluster.TLSServerName).To(Equal("other.example.com"))
		g.Expect(cluster.ProxyURL).To(Equal("http://127.0.0.1:1"))
	})

	t.Run("When a copy is parsed, it should say the same, with the port that https has", func(t *testing.T) {
		g := NewWithT(t)
		content, err := access.Config("", "")
		g.Expect(err).NotTo(HaveOccurred())
		again, err := kubeconfig.Parse(content)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(again.Address()).To(Equal("api.example.com:443"))
		again.CA, again.Certificate, again.Key = nil, nil, nil
		g.Expect(again).To(Equal(access))
	})
}

// FuzzParse looks for a kubeconfig from which something passes that names a file, a program or a proxy.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"", "{}", "a: &a [*a]", "apiVersion: v1\nkind: Config\n",
		`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],` +
			`"clusters":[{"name":"c","cluster":{"server":"https://a:1","proxy-url":"http://b"}}],"users":[{"name":"u","user":{"token":"t","tokenFile":"/dev/zero"}}]}`,
		`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],` +
			`"clusters":[{"name":"c","cluster":{"server":"https://[::1]:443/x"}}],"users":[{"name":"u","user":{"token":"t"}}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		access, err := kubeconfig.Parse(content)
		if err != nil {
			if len(err.Error()) > 200 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		copied, err := access.Config("", "")
		if err != nil {
			t.Fatal(err)
		}
		config, err := clientcmd.RESTConfigFromKubeConfig(copied)
		if err != nil {
			t.Fatalf("the copy can't be used: %v", err)
		}
		if !strings.HasPrefix(config.Host, "https://") && !strings.HasPrefix(config.Host, "HTTPS://") || config.Insecure || config.CAFile != "" || config.CertFile != "" || config.KeyFile != "" ||
			config.BearerTokenFile != "" || config.ExecProvider != nil || config.AuthProvider != nil || config.Proxy != nil || config.Username != "" || config.Impersonate.UserName != "" {
			t.Errorf("%s passed: %#v", content, config)
		}
	})
}
