// SPDX-License-Identifier: Apache-2.0

package nodeclass_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/controllers/nodeclass"
)

// spotPatches make spot machines where they are offered.
const spotPatches = `[{op: add, path: /spec/market, valueFrom: {variable: capacityType}}]`

func TestTemplates(t *testing.T) {
	t.Run("When templates match, it should be ready and list them, cheapest first", func(t *testing.T) {
		f := start(t, "")
		f.template("c4-arm", map[string]string{
			autoscaler + "cpu": "4", autoscaler + "memory": "8Gi", autoscaler + "ephemeral-disk": "100Gi", autoscaler + "labels": "kubernetes.io/arch=arm64",
			autoscaler + "gpu-type": "nvidia.com/gpu", autoscaler + "gpu-count": "1",
			v1alpha1.PriceAnnotation: "0.080", v1alpha1.SpotPriceAnnotation: "0.02", v1alpha1.InfrastructurePatchesAnnotation: spotPatches,
		})
		f.template("c2-small", sized("2", "4Gi", "0.021"))
		f.nodeClass(nil)
		f.ready()
		nodeClass := f.stored()
		f.Expect(nodeClass.Finalizers).To(ConsistOf(v1alpha1.NodeClassFinalizer))
		f.Expect(nodeClass.Annotations).To(HaveKeyWithValue(v1alpha1.NodeClassHashAnnotation, nodeClass.Hash()))
		f.Expect(nodeClass.Annotations).To(HaveKeyWithValue(v1alpha1.NodeClassHashVersionAnnotation, v1alpha1.NodeClassHashVersion))
		f.Expect(nodeClass.Status.Version).To(Equal("1.36.2"))
		f.Expect(nodeClass.Status.TemplateCount).To(HaveValue(BeEquivalentTo(2)))
		f.Expect(nodeClass.Status.Cheapest).To(Equal("c4-arm $0.02"))
		var lines []string
		for _, s := range nodeClass.Status.Templates {
			gpu := s.GPU["nvidia.com/gpu"]
			lines = append(lines, fmt.Sprint(s.InstanceType, " ", s.Source, " ", s.Architecture, " ", s.CPU.String(), " ", s.Memory.String(), " ", gpu.String(), " ", s.Price, " ", s.SpotPrice, " ", s.Zones))
		}
		f.Expect(lines).To(Equal([]string{
			"c4-arm TestMachineTemplate/c4-arm arm64 4 8Gi 1 0.08 0.02 [a b]",
			"c2-small TestMachineTemplate/c2-small amd64 2 4Gi 0 0.021  [a b]",
		}))
		f.Expect(f.instanceTypes()).To(Equal([]string{"c2-small", "c4-arm"}))
		choice := f.resolve("c2-small")
		f.Expect(choice.FailureDomain).To(Equal("b"))
		f.Expect(choice.Template.Bootstrap.ConfigTemplate.GetName()).To(Equal("default"))
		f.condition(v1alpha1.ConditionAllocatableKnown, "True", v1alpha1.ConditionAllocatableKnown)
		f.Expect(f.events.reasons()).To(BeEmpty(), "that all is well from the start is not an event")
	})

	t.Run("When templates come, change and go, it should follow them, and say each change once", func(t *testing.T) {
		f := start(t, "")
		f.nodeClass(nil)
		f.condition(v1alpha1.ConditionTemplatesReady, "False", v1alpha1.NoTemplatesReason)
		small := f.template("c2-small", sized("2", "4Gi", "0.021"))
		f.ready()
		f.template("c4-big", sized("4", "8Gi", "0.096"))
		f.Eventually(f.instanceTypes).Should(Equal([]string{"c2-small", "c4-big"}))

		small.SetAnnotations(sized("four", "4Gi", "0.021"))
		f.Expect(f.Admin.Update(t.Context(), small)).To(Succeed())
		f.condition(v1alpha1.ConditionTemplatesReady, "True", v1alpha1.SomeInvalidReason, Equal(fmt.Sprintf("TestMachineTemplate %s/c2-small: annotation %scpu: %q is not a quantity; the other 1 template is in use", f.Namespace, autoscaler, "four")))
		f.ready()
		// Its nodes have a type that Karpenter still has, so that they aren't replaced for a typing error.
		f.Expect(f.instanceTypes()).To(Equal([]string{"c2-small", "c4-big"}))
		f.Expect(f.available("c2-small")).To(BeFalse())
		f.Expect(f.stored().Status.TemplateCount).To(HaveValue(BeEquivalentTo(1)))

		small.SetAnnotations(sized("2", "4Gi", "0.3"))
		f.Expect(f.Admin.Update(t.Context(), small)).To(Succeed())
		f.condition(v1alpha1.ConditionTemplatesReady, "True", v1alpha1.ConditionTemplatesReady)
		f.Expect(f.available("c2-small")).To(BeTrue())
		f.Expect(f.stored().Status.Cheapest).To(Equal("c4-big $0.096"))
		f.Expect(f.Admin.Delete(t.Context(), small)).To(Succeed())
		f.Eventually(f.instanceTypes).Should(Equal([]string{"c4-big"}))
		f.Expect(f.events.reasons()).To(Equal([]string{v1alpha1.NoTemplatesReason, v1alpha1.ConditionTemplatesReady, v1alpha1.SomeInvalidReason, v1alpha1.ConditionTemplatesReady}))
	})

	t.Run("When a template's content changes, it should touch the node class, so that Karpenter looks for drift at once", func(t *testing.T) {
		f := start(t, "")
		f.nodeClass(nil)
		small := f.template("c2-small", sized("2", "4Gi", "0.021"))
		f.ready()
		hash := func() string { return f.stored().Annotations[nodeclass.TemplatesHashAnnotation] }
		f.Eventually(hash).ShouldNot(BeEmpty())
		before := hash()
		f.Expect(unstructured.SetNestedField(small.Object, "other", "spec", "template", "spec", "size")).To(Succeed())
		f.Expect(f.Admin.Update(t.Context(), small)).To(Succeed())
		f.Eventually(hash).ShouldNot(Equal(before))
	})

	t.Run("When an object is another Cluster's, it should not be a template", func(t *testing.T) {
		f := start(t, "")
		theirs := f.template("theirs", sized("2", "4Gi", "0.001"))
		theirs.SetLabels(map[string]string{pool: "general", clusterv1.ClusterNameLabel: "green"})
		f.Expect(f.Admin.Update(t.Context(), theirs)).To(Succeed())
		owned := f.template("owned", sized("2", "4Gi", "0.001"))
		owned.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: "green", UID: "1"}})
		f.Expect(f.Admin.Update(t.Context(), owned)).To(Succeed())
		f.template("ours", sized("2", "4Gi", "0.021"))
		f.nodeClass(nil)
		f.ready()
		f.Expect(f.instanceTypes()).To(Equal([]string{"ours"}))
	})
}
