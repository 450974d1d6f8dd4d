// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
		f := newFixture(t)
		tmpl := f.Template("c2-small", 0.02)
		list, err := patch.Decode(`[{op: add, path: /spec/zone, valueFrom: {template: "in={{ .zone }}"}}]`)
		f.Expect(err).NotTo(HaveOccurred())
		tmpl.Patches, err = patch.Parse(list)
		f.Expect(err).NotTo(HaveOccurred())
		f.selects([]template.Template{tmpl}, template.Cluster{}, template.Gaps{})
		return f
	}
	read := func(f *fixture, kind schema.GroupVersionKind, name string) *unstructured.Unstructured {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(kind)
		object.SetNamespace(f.Namespace)
		object.SetName(f.MachineName(name))
		f.Expect(f.Admin.Get(f.ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
		return object
	}

	t.Run("When neither the Cluster nor the template declares a zone, neither the machine nor its kubelet should claim one", func(t *testing.T) {
		f := zoneless(t)
		nodeClaim, created := f.launch("nowhere", nil)
		// Karpenter counts the machine in the zone of its offering until its Node is registered.
		f.Expect(created.Labels).To(HaveKeyWithValue(corev1.LabelTopologyZone, offering.DefaultZone))

		m := f.machine(nodeClaim.Name)
		f.Expect(m.Labels).NotTo(HaveKey(corev1.LabelTopologyZone))
		f.Expect(m.Spec.FailureDomain).To(BeEmpty())
		args, err := read(f, environment.KubeadmConfig, nodeClaim.Name).MarshalJSON()
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(string(args)).To(And(ContainSubstring("node-labels"), Not(ContainSubstring(corev1.LabelTopologyZone))))
		f.Expect(read(f, environment.TestMachine, nodeClaim.Name).Object["spec"]).To(HaveKeyWithValue("zone", "in="))
	})

	t.Run("When its machine is asked for again, it should be known as what it was launched as", func(t *testing.T) {
		f := zoneless(t)
		nodeClaim, first := f.launch("nowhere", nil)
		f.Eventually(func(g Gomega) {
			listed, err := f.provider.Get(f.ctx, first.Status.ProviderID)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(listed.Labels).To(HaveKeyWithValue(corev1.LabelTopologyZone, offering.DefaultZone))
		}).Should(Succeed())
		second, err := f.provider.Create(f.ctx, nodeClaim)
		f.Expect(err).NotTo(HaveOccurred())
		f.Expect(second.Labels).To(Equal(first.Labels))
		f.Expect(inventory.OriginOf(f.machine(nodeClaim.Name)).Key).To(Equal(offering.Key{InstanceType: "c2-small", Zone: offering.DefaultZone, CapacityType: "on-demand"}))
	})
}
