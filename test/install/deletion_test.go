// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/apiserver"
	"github.com/autonode-io/autonode/internal/scopetest"
)

// guarded starts an API server with the CRDs, another group's CRD, and the policy that guards the deletion of ours.
func guarded(t *testing.T) client.Client {
	t.Helper()
	g := NewWithT(t)
	other := scopetest.Definition("example.com", "Widget", "widgets", "v1")
	environment := apiserver.New(envtest.CRDInstallOptions{Paths: []string{installation + "/crds"}, CRDs: []*apiextensionsv1.CustomResourceDefinition{other}})
	config, err := environment.Start()
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(environment.Stop()).To(Succeed()) })
	scheme := runtime.NewScheme()
	g.Expect(apiextensionsv1.AddToScheme(scheme)).To(Succeed())
	g.Expect(admissionregistrationv1.AddToScheme(scheme)).To(Succeed())
	c, err := client.New(config, client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	made := 0
	for _, resource := range build(t, installation).Resources() {
		if !strings.HasPrefix(resource.GetName(), "deletion.") {
			continue
		}
		var object client.Object = &admissionregistrationv1.ValidatingAdmissionPolicy{}
		if resource.GetKind() == "ValidatingAdmissionPolicyBinding" {
			object = &admissionregistrationv1.ValidatingAdmissionPolicyBinding{}
		}
		content, err := resource.Map()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(content, object, true)).To(Succeed())
		g.Expect(c.Create(t.Context(), object)).To(Succeed())
		made++
	}
	g.Expect(made).To(Equal(2))
	return c
}

func TestDeletion(t *testing.T) {
	c := guarded(t)
	crd := func(name string) *apiextensionsv1.CustomResourceDefinition {
		return &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	ours := []string{"hostedclusters." + v1beta1.Group, "controlplanecomponents." + v1beta1.Group, "instancetypecatalogs." + v1alpha1.Group}

	t.Run("When one of our CRDs is deleted, it should be denied, and the message should say how to confirm", func(t *testing.T) {
		g := NewWithT(t)
		for _, name := range ours {
			// A policy takes effect some time after its creation.
			g.Eventually(func() error { return c.Delete(t.Context(), crd(name), client.DryRunAll) }).Should(And(
				WithTransform(apierrors.IsForbidden, BeTrue()),
				MatchError(ContainSubstring("to go on, run: kubectl annotate crd "+name+" "+v1beta1.ConfirmDeletionAnnotation+"=true"))))
		}
		g.Expect(c.Delete(t.Context(), crd(ours[0]))).To(MatchError(ContainSubstring("drains the nodes of all hosted clusters")))
	})
	t.Run("When all CRDs are deleted at once, ours should stay", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(apierrors.IsForbidden(c.DeleteAllOf(t.Context(), crd("")))).To(BeTrue())
		list := &apiextensionsv1.CustomResourceDefinitionList{}
		g.Expect(c.List(t.Context(), list)).To(Succeed())
		for _, name := range ours {
			g.Expect(slices.ContainsFunc(list.Items, func(d apiextensionsv1.CustomResourceDefinition) bool {
				return d.Name == name && d.DeletionTimestamp.IsZero()
			})).To(BeTrue(), name)
		}
	})
	t.Run("When another group's CRD is deleted, it should be none of our business", func(t *testing.T) {
		NewWithT(t).Expect(client.IgnoreNotFound(c.Delete(t.Context(), crd("widgets.example.com")))).To(Succeed())
	})
	t.Run("When the deletion is confirmed, it should be allowed", func(t *testing.T) {
		g := NewWithT(t)
		definition := crd(ours[0])
		g.Expect(c.Get(t.Context(), client.ObjectKeyFromObject(definition), definition)).To(Succeed())
		for value, allowed := range map[string]bool{"yes": false, "true": true} {
			before := client.MergeFrom(definition.DeepCopy())
			metav1.SetMetaDataAnnotation(&definition.ObjectMeta, v1beta1.ConfirmDeletionAnnotation, value)
			g.Expect(c.Patch(t.Context(), definition, before)).To(Succeed())
			err := c.Delete(t.Context(), crd(ours[0]), client.DryRunAll)
			g.Expect(err == nil).To(Equal(allowed), "%q: %v", value, err)
		}
	})
}
