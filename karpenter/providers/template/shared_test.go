// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/providers/profile"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// In a namespace that Clusters share, a template has to say that it is this Cluster's.
func TestSharedNamespace(t *testing.T) {
	const group, pool = "infrastructure.cluster.x-k8s.io", "pool"
	object := func(apiVersion, kind, name string, labels map[string]string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{}}}}}
		u.SetAPIVersion(apiVersion)
		u.SetKind(kind)
		u.SetNamespace("team")
		u.SetName(name)
		u.SetLabels(labels)
		u.SetAnnotations(map[string]string{
			"capacity.cluster-autoscaler.kubernetes.io/cpu": "2", "capacity.cluster-autoscaler.kubernetes.io/memory": "4Gi",
		})
		return u
	}
	machines := func(name, cluster string) *unstructured.Unstructured {
		labels := map[string]string{pool: "general"}
		if cluster != "" {
			labels[clusterv1.ClusterNameLabel] = cluster
		}
		return object(group+"/v1beta1", "TestMachineTemplate", name, labels)
	}
	owned := machines("owned", "")
	owned.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: "blue", UID: "1"}})
	bootstrap := func(name, cluster string) *unstructured.Unstructured {
		return object("bootstrap.cluster.x-k8s.io/v1beta2", "KubeadmConfigTemplate", name, map[string]string{clusterv1.ClusterNameLabel: cluster})
	}
	objects := environment.Objects{
		machines("ours", "blue"), owned, machines("theirs", "green"), machines("unlabelled", ""), bootstrap("blue-workers", "blue"), bootstrap("green-workers", "green"),
	}
	var controlPlanes template.Objects
	find := func(g Gomega, shared bool, config string) (names []string, found *template.Found) {
		class := &v1alpha1.ClusterAPINodeClass{}
		class.Spec.DefaultArchitecture = "amd64"
		class.Spec.InfrastructureTemplateSelectors = []v1alpha1.InfrastructureTemplateSelector{{
			APIGroup: group, Kind: "TestMachineTemplate", Selector: metav1.LabelSelector{MatchLabels: map[string]string{pool: "general"}},
		}}
		class.Spec.Bootstrap = &v1alpha1.Bootstrap{ConfigTemplateRef: &v1alpha1.BootstrapTemplateReference{
			APIGroup: "bootstrap.cluster.x-k8s.io", Kind: "KubeadmConfigTemplate", Name: config,
		}}
		resolver := template.NewResolver(template.Config{Objects: objects, ClusterName: "blue", Namespace: "team", Secrets: environment.Secrets{}, Profiles: profile.Embedded(), Shared: shared, ControlPlanes: controlPlanes})
		found, err := resolver.Resolve(t.Context(), class)
		g.Expect(err).NotTo(HaveOccurred())
		for i := range found.Matching {
			names = append(names, found.Matching[i].Name)
		}
		return names, found
	}
	t.Run("When Clusters share the namespace, it should select what has the Cluster's label or owner reference", func(t *testing.T) {
		g := NewWithT(t)
		names, found := find(g, true, "blue-workers")
		g.Expect(names).To(ConsistOf("ours", "owned"))
		g.Expect(found.BootstrapErr).NotTo(HaveOccurred())
		g.Expect(found.Others).To(ContainElement(2), "so that a message can say what to label")
	})
	t.Run("When a machine of the control plane was made from a template, it should be excluded, and say what to do", func(t *testing.T) {
		g := NewWithT(t)
		cloned := func(from, kind string) *unstructured.Unstructured {
			machine := object(group+"/v1beta1", "TestMachine", "blue-control-plane-"+from, map[string]string{clusterv1.ClusterNameLabel: "blue", clusterv1.MachineControlPlaneLabel: ""})
			machine.SetAnnotations(map[string]string{clusterv1.TemplateClonedFromNameAnnotation: from, clusterv1.TemplateClonedFromGroupKindAnnotation: kind})
			return machine
		}
		controlPlanes = environment.Objects{cloned("ours", "TestMachineTemplate."+group), cloned("owned", "OtherMachineTemplate."+group)}
		names, found := find(g, false, "blue-workers")
		g.Expect(names).To(ConsistOf("ours", "owned", "unlabelled"))
		g.Expect(found.Templates).NotTo(ContainElement(HaveField("Source.Name", "ours")))
		g.Expect(found.Invalid).To(ContainElement(MatchError(And(
			ContainSubstring("ours"), ContainSubstring("TestMachine blue-control-plane-ours of the control plane was made from it"), ContainSubstring("make a template of its own for nodes")))))
		g.Expect(found.Invalid).NotTo(ContainElement(MatchError(ContainSubstring("owned"))))
		controlPlanes = nil
	})
	t.Run("When they don't, it should select what has no Cluster's label, too", func(t *testing.T) {
		g := NewWithT(t)
		names, found := find(g, false, "blue-workers")
		g.Expect(names).To(ConsistOf("ours", "owned", "unlabelled"))
		g.Expect(found.Others).To(BeEmpty())
	})
	t.Run("When a node class names another Cluster's bootstrap template, no machine should boot with it", func(t *testing.T) {
		g := NewWithT(t)
		_, found := find(g, true, "green-workers")
		g.Expect(found.BootstrapErr).To(MatchError(template.ErrNotOurs))
		for i := range found.Templates {
			g.Expect(found.Templates[i].Bootstrap.IsDefined()).To(BeFalse())
		}
	})
}
