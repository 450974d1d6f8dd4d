// SPDX-License-Identifier: Apache-2.0

package nodeclass_test

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
)

func TestAllocatable(t *testing.T) {
	t.Run("When a template has no ephemeral storage, it should be ready, name the template and say what to set", func(t *testing.T) {
		f := start(t, "")
		diskless := sized("2", "4Gi", "0.021")
		delete(diskless, autoscaler+"ephemeral-disk")
		f.template("c2-small", diskless)
		f.template("c8-huge", sized("4", "8Gi", "0.042"))
		f.nodeClass(nil)
		f.ready()
		f.condition(v1alpha1.ConditionAllocatableKnown, "False", v1alpha1.EphemeralStorageUnknownReason, And(
			ContainSubstring("c2-small"), ContainSubstring("set annotation capacity.cluster-autoscaler.kubernetes.io/ephemeral-disk"), Not(ContainSubstring("c8-huge"))))
		f.Expect(f.events.reasons()).To(Equal([]string{v1alpha1.EphemeralStorageUnknownReason}))
	})
	t.Run("When the bootstrap data are a Secret's, it should say that its settings can't be read until a node has reported", func(t *testing.T) {
		f := start(t, "")
		f.secret("join")
		f.template("c2-small", sized("2", "4Gi", "0.021"))
		f.nodeClass(func(n *v1alpha1.ClusterAPINodeClass) { n.Spec.Bootstrap = &v1alpha1.Bootstrap{DataSecretName: "join"} })
		f.ready()
		f.condition(v1alpha1.ConditionAllocatableKnown, "False", v1alpha1.KubeletSettingsUnknownReason, And(
			ContainSubstring("nodes of 1 of 1 template may allocate less"), ContainSubstring("Secret join: its bootstrap data isn't read")))

		snapshot, err := f.store.Cached(f.name)
		f.Expect(err).NotTo(HaveOccurred())
		for tmpl := range snapshot.Templates() {
			f.machines.ObserveMachine("1", inventory.Machine{
				Origin: inventory.Origin{Source: tmpl.Source.Annotation()}, ContentHash: tmpl.ContentHash, BootstrapHash: tmpl.Bootstrap.Hash,
				NodeClassHash: (&v1alpha1.ClusterAPINodeClass{}).Hash(), ProviderID: "cloud://1",
			})
		}
		f.machines.ObserveNode("a", inventory.Node{
			ProviderID: "cloud://1", Capacity: inventory.Amounts{Memory: 4 << 30}, Allocatable: inventory.Amounts{MilliCPU: 1900, Memory: 3 << 30},
		})
		f.condition(v1alpha1.ConditionAllocatableKnown, "True", v1alpha1.ConditionAllocatableKnown)
	})
	t.Run("When kubelets reject pods that fit, it should stay ready, name the template and say what to use instead", func(t *testing.T) {
		f := start(t, "")
		args := []any{map[string]any{"name": "topology-manager-policy", "value": "restricted"}}
		f.Expect(unstructured.SetNestedSlice(f.BootstrapTemplate.Object, args, "spec", "template", "spec", "joinConfiguration", "nodeRegistration", "kubeletExtraArgs")).To(Succeed())
		f.Expect(f.Admin.Update(t.Context(), f.BootstrapTemplate)).To(Succeed())
		f.template("c2-small", sized("2", "4Gi", "0.021"))
		f.nodeClass(nil)
		f.ready()
		f.condition(v1alpha1.ConditionAllocatableKnown, "True", v1alpha1.PodsMayNotFitReason, And(
			ContainSubstring("nodes of 1 of 1 template may hold fewer pods"), ContainSubstring("KubeadmConfigTemplate default, topologyManagerPolicy: restricted"), ContainSubstring("use best-effort")))
		f.Expect(f.events.reasons()).To(Equal([]string{v1alpha1.PodsMayNotFitReason}))
	})
}
