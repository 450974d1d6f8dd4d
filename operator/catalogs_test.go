// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/internal/apiserver"
	"github.com/autonode-io/autonode/internal/scopetest"
	"github.com/autonode-io/autonode/operator/steps/component"
)

// catalogOf has instance types of one core each, which differ by a patch.
func catalogOf(namespace, name string, types ...string) *v1alpha1.InstanceTypeCatalog {
	found := &v1alpha1.InstanceTypeCatalog{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	found.Spec.TemplateRef = v1alpha1.InfrastructureTemplateReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "TestMachineTemplate", Name: "general"}
	found.Spec.Patches = []v1alpha1.CatalogPatch{{Op: "add", Path: "/spec/size", ValueFrom: &v1alpha1.CatalogPatchValue{Variable: "instanceType"}}}
	for _, name := range types {
		found.Spec.InstanceTypes = append(found.Spec.InstanceTypes, v1alpha1.CatalogInstanceType{
			Name: name, Capacity: map[string]scalar.Quantity{"cpu": scalar.Number(1), "memory": scalar.Text("1Gi")},
			Offerings: []v1alpha1.CatalogOffering{{Zones: []v1alpha1.CatalogValue{"a", "b"}, Price: "0.1"}},
		})
	}
	return found
}

func TestCatalogs(t *testing.T) {
	const label, name, shared = "catalogs.test", "shopper", "autonode-catalogs-test"
	provide(t)
	host := serveRegistry(t)
	removeAll(t, label)
	platform(t, name)
	g, ctx, management := NewWithT(t), t.Context(), clusters.Management.Client
	err := apiserver.InstallCRDs(clusters.Management.Config, envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{
		scopetest.Definition("infrastructure.cluster.x-k8s.io", "TestMachine", "testmachines", "v1beta1"),
		scopetest.Definition("infrastructure.cluster.x-k8s.io", "TestMachineTemplate", "testmachinetemplates", "v1beta1"),
	}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(management.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shared}})).To(Succeed())
	g.Expect(management.Create(ctx, catalogOf("clusters-"+name, "sound", "t-1", "t-2"))).To(Succeed())
	g.Expect(management.Create(ctx, catalogOf("clusters-"+name, "doubtful", "t-1", "t-1", "not a label"))).To(Succeed())
	hosted := newHosted("clusters", name, push(t, host, "1.36.2"), label)
	hosted.Spec.AutoNode.ProvisionerConfig.Karpenter.ClusterAPI.CatalogSelectors = []v1alpha1.CatalogSelector{{Scope: v1alpha1.CatalogScopeShared}}
	g.Expect(management.Create(ctx, hosted)).To(Succeed())
	options := selecting(label)
	options.Karpenter = component.Settings{SharedCatalogNamespace: shared}
	run(t, clusters.Management.Config, options)
	read := func(g Gomega, name string) *v1alpha1.InstanceTypeCatalog {
		return scopetest.Get(ctx, g, management, "clusters-shopper", name, &v1alpha1.InstanceTypeCatalog{})
	}

	t.Run("When a catalog is sound, it should say how much there is", func(t *testing.T) {
		NewWithT(t).Eventually(func(g Gomega) {
			found := read(g, "sound")
			g.Expect(found.Status.ObservedGeneration).To(Equal(found.Generation))
			g.Expect(found.StatusConditions().IsTrue("Ready")).To(BeTrue())
			g.Expect(found.Status.InstanceTypeCount).To(HaveValue(BeEquivalentTo(2)))
			g.Expect(found.Status.OfferingCount).To(HaveValue(BeEquivalentTo(4)))
			g.Expect(found.Status.Unusable).To(BeEmpty())
		}).Should(Succeed())
	})
	t.Run("When entries are malformed, it should name them and be ready with the others", func(t *testing.T) {
		NewWithT(t).Eventually(func(g Gomega) {
			found := read(g, "doubtful")
			g.Expect(found.StatusConditions().IsTrue("Ready")).To(BeTrue())
			g.Expect(found.StatusConditions().Get(v1alpha1.ConditionInstanceTypesUsable).Reason).To(Equal(v1alpha1.SomeUnusableReason))
			g.Expect(found.Status.UnusableCount).To(HaveValue(BeEquivalentTo(2)))
			g.Expect(found.Status.Unusable).To(ConsistOf(
				And(HaveField("Index", BeEquivalentTo(1)), HaveField("Message", ContainSubstring("has the same name"))),
				And(HaveField("Index", BeEquivalentTo(2)), HaveField("Name", "not a label")),
			))
		}).Should(Succeed())
	})
	t.Run("When it is corrected, it should say so", func(t *testing.T) {
		g := NewWithT(t)
		found := read(g, "doubtful")
		found.Spec.InstanceTypes = found.Spec.InstanceTypes[:1]
		g.Expect(management.Update(ctx, found)).To(Succeed())
		g.Eventually(func(g Gomega) {
			found := read(g, "doubtful")
			g.Expect(found.StatusConditions().Get(v1alpha1.ConditionInstanceTypesUsable).Reason).To(Equal(v1alpha1.ConditionInstanceTypesUsable))
			g.Expect(found.Status.Unusable).To(BeEmpty())
		}).Should(Succeed())
	})
	t.Run("When the HostedCluster selects shared catalogs, Karpenter should get their namespace, and may clone their templates", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(management.Create(ctx, catalogOf(shared, "everybodys", "t-1"))).To(Succeed())
		g.Eventually(func(g Gomega) {
			role := scopetest.Get(ctx, g, management, "clusters-"+name, "karpenter", &rbacv1.Role{})
			g.Expect(fmt.Sprint(role.Rules)).To(And(ContainSubstring("instancetypecatalogs"), ContainSubstring("testmachinetemplates")))
		}).Should(Succeed())
	})
}
