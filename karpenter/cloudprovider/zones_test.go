// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/catalog/patch"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

func TestZoneless(t *testing.T) {
	zoneless := func(t *testing.T) *fixture {
		t.Helper()
		f := newFixture(t, nil)
		tmpl := f.Template("c2-small", 0.02)
		list, err := patch.Decode(`[{op: add, path: /spec/zone, valueFrom: {template: "in={{ .zone }}"}}]`)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		tmpl.Patches, err = patch.Parse(list)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		f.selects([]template.Template{tmpl}, template.Cluster{}, template.Gaps{})
		return f
	}
	read := func(f *fixture, g Gomega, object *unstructured.Unstructured, name string) {
		object.SetNamespace(f.Namespace)
		object.SetName(f.Name(object.GroupVersionKind(), name))
		g.Expect(f.Admin.Get(f.t.Context(), client.ObjectKeyFromObject(object), object)).To(Succeed())
	}

	t.Run("When neither the Cluster nor the template declares a zone, neither the machine nor its kubelet should claim one", func(t *testing.T) {
		g := NewWithT(t)
		f := zoneless(t)
		nodeClaim := f.claim("nowhere", nil)
		created, err := f.provider.Create(f.ctx, nodeClaim)
		g.Expect(err).NotTo(HaveOccurred())
		// Karpenter counts the machine in the zone of its offering until its Node is registered.
		g.Expect(created.Labels).To(HaveKeyWithValue(corev1.LabelTopologyZone, offering.DefaultZone))

		m := f.machine(nodeClaim.Name)
		g.Expect(m.Labels).NotTo(HaveKey(corev1.LabelTopologyZone))
		g.Expect(m.Spec.FailureDomain).To(BeEmpty())
		config, infrastructure := &unstructured.Unstructured{}, &unstructured.Unstructured{}
		config.SetGroupVersionKind(environment.KubeadmConfig)
		read(f, g, config, m.Name)
		args, err := config.MarshalJSON()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(args)).To(And(ContainSubstring("node-labels"), Not(ContainSubstring(corev1.LabelTopologyZone))))
		infrastructure.SetGroupVersionKind(environment.TestMachine)
		read(f, g, infrastructure, m.Name)
		g.Expect(infrastructure.Object["spec"]).To(HaveKeyWithValue("zone", "in="))
	})

	t.Run("When its machine is asked for again, it should be known as what it was launched as", func(t *testing.T) {
		g := NewWithT(t)
		f := zoneless(t)
		nodeClaim := f.claim("nowhere", nil)
		first, err := f.provider.Create(f.ctx, nodeClaim)
		g.Expect(err).NotTo(HaveOccurred())
		g.Eventually(func(g Gomega) {
			listed, err := f.provider.Get(f.ctx, first.Status.ProviderID)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(listed.Labels).To(HaveKeyWithValue(corev1.LabelTopologyZone, offering.DefaultZone))
		}).Should(Succeed())
		second, err := f.provider.Create(f.ctx, nodeClaim)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(second.Labels).To(Equal(first.Labels))
		g.Expect(inventory.OriginOf(f.machine(nodeClaim.Name)).Key).To(Equal(offering.Key{InstanceType: "c2-small", Zone: offering.DefaultZone, CapacityType: "on-demand"}))
	})
}
