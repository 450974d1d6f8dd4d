// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestFlags(t *testing.T) {
	dir := t.TempDir()
	kubeconfig := func(name string) string {
		config, path := clientcmdapi.NewConfig(), filepath.Join(dir, name)
		for _, context := range []string{"current", "m", "g"} {
			config.Clusters[context] = &clientcmdapi.Cluster{Server: "https://" + name + "/" + context}
			config.Contexts[context] = &clientcmdapi.Context{Cluster: context, AuthInfo: "user"}
		}
		config.CurrentContext, config.AuthInfos["user"] = "current", &clientcmdapi.AuthInfo{Token: "a"}
		NewWithT(t).Expect(clientcmd.WriteToFile(*config, path)).To(Succeed())
		return path
	}
	t.Setenv("KUBECONFIG", kubeconfig("default"))
	both, own := kubeconfig("both"), kubeconfig("own")
	for name, test := range map[string]struct {
		args              []string
		management, guest string
	}{
		"When both contexts are given, they should be in the default kubeconfig": {[]string{"--management-context=m", "--guest-context=g"}, "default/m", "default/g"},
		"When a kubeconfig is given, both contexts should be in it": {
			[]string{"--kubeconfig", both, "--management-context=m", "--guest-context=g"}, "both/m", "both/g",
		},
		"When each cluster has a kubeconfig, it should be the current context of each": {
			[]string{"--management-kubeconfig", own, "--guest-kubeconfig", both}, "own/current", "both/current",
		},
		"When one cluster has its own kubeconfig, it should win, in any order": {
			[]string{"--guest-kubeconfig", own, "--kubeconfig", both, "--management-context=m", "--guest-context=g"}, "both/m", "own/g",
		},
	} {
		for _, about := range []string{Management, Guest} {
			t.Run(name+", in a command about a "+about, func(t *testing.T) {
				g := NewWithT(t)
				clusters := map[string]*Flags{Management: {}, Guest: {}}
				cmd, other := &cobra.Command{}, map[string]string{Management: Guest, Guest: Management}[about]
				clusters[about].Add(cmd, about, clusters[other])
				g.Expect(cmd.ParseFlags(test.args)).To(Succeed())
				for cluster, want := range map[string]string{Management: test.management, Guest: test.guest} {
					g.Expect(clusters[cluster].Chosen()).To(BeTrue())
					g.Expect(clusters[cluster].Config()).To(HaveField("Host", "https://"+want))
				}
			})
		}
	}
	t.Run("When no flag is of the other cluster, the command should read its own alone, in --context", func(t *testing.T) {
		g := NewWithT(t)
		cmd, management, guest := &cobra.Command{}, &Flags{}, &Flags{}
		guest.Add(cmd, Guest, management)
		g.Expect(cmd.ParseFlags([]string{"--kubeconfig", both, "--context=g"})).To(Succeed())
		g.Expect(guest.Config()).To(HaveField("Host", "https://both/g"))
		g.Expect(guest.Chosen()).To(BeTrue())
		g.Expect(management.Chosen()).To(BeFalse())
	})
}

func TestKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	NewWithT(t).Expect(os.WriteFile(file, []byte(`
apiVersion: v1
kind: Config
current-context: a
contexts: [{name: a, context: {cluster: a, user: a, namespace: mine}}]
clusters: [{name: a, cluster: {server: "https://10.0.0.1:6443"}}]
`), 0o600)).To(Succeed())
	for name, test := range map[string]struct {
		argument, namespace string
		want                client.ObjectKey
		problem             string
	}{
		"When the name has a namespace, it should be that": {argument: "clusters/blue", want: client.ObjectKey{Namespace: "clusters", Name: "blue"}},
		"When the flag has a namespace, it should be that": {argument: "blue", namespace: "clusters", want: client.ObjectKey{Namespace: "clusters", Name: "blue"}},
		"When both have the same, it should be that": {argument: "clusters/blue", namespace: "clusters",
			want: client.ObjectKey{Namespace: "clusters", Name: "blue"}},
		"When neither has one, it should be the context's": {argument: "blue", want: client.ObjectKey{Namespace: "mine", Name: "blue"}},
		"When both have one and they differ, it should say so": {argument: "clusters/blue", namespace: "mine",
			problem: `"clusters/blue" and --namespace mine name different namespaces; leave one of them out`},
		"When there is no name behind the slash, it should show one":      {argument: "clusters/", problem: `"clusters/" isn't the name of a pod, like shop/web`},
		"When there is no namespace before the slash, it should show one": {argument: "/blue", problem: `"/blue" isn't the name of a pod, like shop/web`},
		"When there are two slashes, it should show one":                  {argument: "a/b/c", problem: `"a/b/c" isn't the name of a pod, like shop/web`},
		"When there is nothing, it should show one":                       {problem: `"" isn't the name of a pod, like shop/web`},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			key, err := (&Flags{Kubeconfig: file}).Key(test.argument, test.namespace, "a pod, like shop/web")
			if test.problem != "" {
				g.Expect(err).To(MatchError(test.problem))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(key).To(Equal(test.want))
		})
	}
}
