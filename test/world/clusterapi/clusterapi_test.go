// SPDX-License-Identifier: Apache-2.0

package clusterapi

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

const machineCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: machines.cluster.x-k8s.io}
spec:
  group: cluster.x-k8s.io
  names: {kind: Machine, plural: machines}
  scope: Namespaced
  versions:
  - {name: v1beta1, served: true, storage: false}
  - {name: v1beta2, served: true, storage: true}
`

func TestProvider(t *testing.T) {
	newProvider := func(g *WithT) *provider {
		dir := t.TempDir()
		g.Expect(os.Mkdir(filepath.Join(dir, "crds"), 0o755)).To(Succeed())
		g.Expect(os.WriteFile(filepath.Join(dir, "crds", "machines.yaml"), []byte(machineCRD), 0o600)).To(Succeed())
		g.Expect(os.WriteFile(filepath.Join(dir, "webhooks.yaml"), []byte("apiVersion: v1\nkind: Secret\n"), 0o600)).To(Succeed())
		return &provider{
			Provider: Provider{Name: "cluster-api", Manifests: dir, Labels: map[string]string{"cluster.x-k8s.io/v1beta2": "v1beta2"}},
			tunable:  true, webhookPort: 4321, caBundle: []byte("ca"),
		}
	}

	t.Run("When CRDs have several versions, only the stored one should be served", func(t *testing.T) {
		g := NewWithT(t)
		crds, err := newProvider(g).crds()
		g.Expect(err).NotTo(HaveOccurred())
		served := map[string]bool{}
		for _, version := range crds[0].Spec.Versions {
			served[version.Name] = version.Served
		}
		g.Expect(served).To(Equal(map[string]bool{"v1beta1": false, "v1beta2": true}))
	})

	t.Run("When a provider is as it ships, it should serve what it ships with, and nothing should be tuned", func(t *testing.T) {
		g := NewWithT(t)
		p := newProvider(g)
		g.Expect(p.tuning()).To(ContainElement("--clustercache-client-qps=500"))
		p.shipped = true
		g.Expect(p.tuning()).NotTo(ContainElement(ContainSubstring("qps")))
		crds, err := p.crds()
		g.Expect(err).NotTo(HaveOccurred())
		for _, version := range crds[0].Spec.Versions {
			g.Expect(version.Served).To(BeTrue(), version.Name)
		}
	})

	t.Run("When a provider isn't Cluster API's own, it should get none of its flags", func(t *testing.T) {
		g := NewWithT(t)
		p := newProvider(g)
		p.tunable = false
		g.Expect(p.tuning()).To(BeEmpty())
	})

	t.Run("When the webhooks' file holds another kind, it should be refused", func(t *testing.T) {
		g := NewWithT(t)
		_, err := newProvider(g).webhooks()
		g.Expect(err).To(MatchError(ContainSubstring(`no kind "Secret"`)))
	})
}
