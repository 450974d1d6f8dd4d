// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// TestWrongClusters calls commands with clusters that can't be used: the error has to say what to do.
func TestWrongClusters(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	t.Setenv("KUBECONFIG", filepath.Join(dir, "none"))
	t.Setenv("HOME", dir)
	good, err := clientcmd.LoadFromFile(managementCluster.kubeconfig)
	g.Expect(err).NotTo(HaveOccurred())
	write := func(name string, change func(*clientcmdapi.Config)) string {
		config := good.DeepCopy()
		change(config)
		path := filepath.Join(dir, name)
		g.Expect(clientcmd.WriteToFile(*config, path)).To(Succeed())
		return path
	}
	expired := write("expired", func(c *clientcmdapi.Config) {
		for name := range c.AuthInfos {
			c.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: "expired"}
		}
	})
	away := write("away", func(c *clientcmdapi.Config) {
		for _, cluster := range c.Clusters {
			cluster.Server = "https://127.0.0.1:1"
		}
	})
	malformed := filepath.Join(dir, "malformed")
	g.Expect(os.WriteFile(malformed, []byte("clusters: 1"), 0o600)).To(Succeed())
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"When there is no kubeconfig, it should name where it looks":     {[]string{"nodes"}, "there is no kubeconfig: set $KUBECONFIG, or name one with --kubeconfig"},
		"When the context doesn't exist, it should list those that do":   {[]string{"nodes", "--kubeconfig", managementCluster.kubeconfig, "--context", "typo"}, `the kubeconfig has no context "typo"; it has ` + good.CurrentContext},
		"When the file isn't a kubeconfig, it should name the flags":     {[]string{"nodes", "--kubeconfig", malformed}, "name the cluster with --kubeconfig or --context"},
		"When the credentials have expired, it should say to renew them": {[]string{"nodes", "--kubeconfig", expired}, "which may have expired: renew them"},
		"When the API server is away, it should say how to check":        {[]string{"cost", "--kubeconfig", away}, "check the cluster with `kubectl cluster-info`"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := run(t, "autonode", test.args...)
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.want)))
		})
	}
}

func TestHelp(t *testing.T) {
	t.Run("When help is requested, it should list the commands in groups", func(t *testing.T) {
		out, err := run(t, "autonode", "--help")
		NewWithT(t).Expect(out, err).To(MatchRegexp(`(?s)Install AutoNode and turn it on:\n  hosted-cluster .*\n  install .*\n  uninstall .*` +
			`Look at clusters:\n  cost .*\n  describe .*\n  dump .*\n  nodes .*\n  offerings .*\n  why .*Make and check files:\n  catalog .*\n  release .*\n  templates .*Additional Commands:\n`))
	})
}
