// SPDX-License-Identifier: Apache-2.0

package clusterapi

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

const (
	machineCRD = `
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
	machineWebhooks = `---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: mutating-webhook-configuration}
webhooks:
- name: default.machine.cluster.x-k8s.io
  admissionReviewVersions: [v1]
  sideEffects: None
  clientConfig: {service: {name: webhook-service, namespace: system, path: /mutate-machine}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: validating-webhook-configuration}
webhooks:
- name: validation.machine.cluster.x-k8s.io
  admissionReviewVersions: [v1]
  sideEffects: None
  clientConfig: {service: {name: webhook-service, namespace: system, path: /validate-machine}}
`
)

func TestProvider(t *testing.T) {
	newProvider := func(g *WithT, webhooks string) *provider {
		dir := t.TempDir()
		g.Expect(os.Mkdir(filepath.Join(dir, "crds"), 0o755)).To(Succeed())
		g.Expect(os.WriteFile(filepath.Join(dir, "crds", "machines.yaml"), []byte(machineCRD), 0o600)).To(Succeed())
		g.Expect(os.WriteFile(filepath.Join(dir, "webhooks.yaml"), []byte(webhooks), 0o600)).To(Succeed())
		return &provider{
			Provider: Provider{Name: "cluster-api", Manifests: dir, Labels: map[string]string{"cluster.x-k8s.io/v1beta2": "v1beta2"}},
			tunable:  true, webhookPort: 4321, caBundle: []byte("ca"),
		}
	}

	t.Run("When CRDs are read, they should convert at the manager's address and tell their contract", func(t *testing.T) {
		g := NewWithT(t)
		crds, err := newProvider(g, machineWebhooks).crds()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(crds).To(HaveLen(1))
		g.Expect(crds[0].Labels).To(Equal(map[string]string{
			"cluster.x-k8s.io/provider": "cluster-api", "cluster.x-k8s.io/v1beta2": "v1beta2",
		}))
		g.Expect(crds[0].Spec.Conversion.Strategy).To(Equal(apiextensionsv1.WebhookConverter))
		config := crds[0].Spec.Conversion.Webhook.ClientConfig
		g.Expect(*config.URL).To(Equal("https://127.0.0.1:4321/convert"))
		g.Expect(config.CABundle).To(Equal([]byte("ca")))
	})

	t.Run("When CRDs have several versions, only the stored one should be served", func(t *testing.T) {
		g := NewWithT(t)
		crds, err := newProvider(g, machineWebhooks).crds()
		g.Expect(err).NotTo(HaveOccurred())
		served := map[string]bool{}
		for _, version := range crds[0].Spec.Versions {
			served[version.Name] = version.Served
		}
		g.Expect(served).To(Equal(map[string]bool{"v1beta1": false, "v1beta2": true}))
	})

	t.Run("When a provider is as it ships, it should serve what it ships with, and nothing should be tuned", func(t *testing.T) {
		g := NewWithT(t)
		p := newProvider(g, machineWebhooks)
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
		p := newProvider(g, machineWebhooks)
		p.tunable = false
		g.Expect(p.tuning()).To(BeEmpty())
	})

	t.Run("When webhooks are read, they should be at the manager's address under a name of the provider's", func(t *testing.T) {
		g := NewWithT(t)
		objects, err := newProvider(g, machineWebhooks).webhooks()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(objects).To(HaveLen(2))
		mutating, ok := objects[0].(*admissionregistrationv1.MutatingWebhookConfiguration)
		g.Expect(ok).To(BeTrue())
		g.Expect(mutating.Name).To(Equal("cluster-api-mutating-webhook-configuration"))
		g.Expect(*mutating.Webhooks[0].ClientConfig.URL).To(Equal("https://127.0.0.1:4321/mutate-machine"))
		g.Expect(mutating.Webhooks[0].ClientConfig.Service).To(BeNil())
		validating, ok := objects[1].(*admissionregistrationv1.ValidatingWebhookConfiguration)
		g.Expect(ok).To(BeTrue())
		g.Expect(*validating.Webhooks[0].ClientConfig.URL).To(Equal("https://127.0.0.1:4321/validate-machine"))
		g.Expect(validating.Webhooks[0].ClientConfig.CABundle).To(Equal([]byte("ca")))
	})

	t.Run("When the webhooks' file holds another kind, it should be refused", func(t *testing.T) {
		g := NewWithT(t)
		_, err := newProvider(g, "apiVersion: v1\nkind: Secret\n").webhooks()
		g.Expect(err).To(MatchError(ContainSubstring(`no kind "Secret"`)))
	})
}
