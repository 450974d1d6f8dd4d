// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

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
			problem: `"clusters/blue" names another namespace than --namespace mine; leave one of them out`},
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
