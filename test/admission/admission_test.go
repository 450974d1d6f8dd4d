// SPDX-License-Identifier: Apache-2.0

// Package admission_test tests what a real API server admits: api/testdata holds one file a case. A comment in the first line
// names the error that the last object of the file has to meet; without it every object is admitted.
package admission_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/autonode-io/autonode/internal/apiserver"
)

// testdata is beside the types.
const testdata = "../../api/testdata/"

// start runs an API server with our CRDs.
func start(t *testing.T) client.Client {
	t.Helper()
	g := NewWithT(t)
	environment := apiserver.New(envtest.CRDInstallOptions{Paths: []string{"../../manifests/crds", "../../assets/crds"}, ErrorIfPathMissing: true})
	t.Cleanup(func() { g.Expect(environment.Stop()).To(Succeed()) }) // even when a CRD is refused, an API server runs
	config, err := environment.Start()
	g.Expect(err).NotTo(HaveOccurred())
	scheme := runtime.NewScheme()
	g.Expect(apiextensionsv1.AddToScheme(scheme)).To(Succeed())
	admin, err := client.New(config, client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	return admin
}

func TestAdmission(t *testing.T) {
	g := NewWithT(t)
	admin := start(t)
	files, err := filepath.Glob(testdata + "*/*.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(files).NotTo(BeEmpty())
	for _, file := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(file, testdata), ".yaml")
		t.Run("When "+name+" is applied, it should be admitted as its file declares", func(t *testing.T) {
			g := NewWithT(t)
			content, err := os.ReadFile(file)
			g.Expect(err).NotTo(HaveOccurred())
			firstLine, _, _ := strings.Cut(string(content), "\n")
			wanted, refused := strings.CutPrefix(firstLine, "# error: ")

			steps := decode(g, content)
			for _, object := range steps[:len(steps)-1] {
				g.Expect(apply(t.Context(), admin, object)).To(Succeed())
			}
			err = apply(t.Context(), admin, steps[len(steps)-1])
			if refused {
				g.Expect(err).To(MatchError(ContainSubstring(wanted)))
			} else {
				g.Expect(err).NotTo(HaveOccurred())
			}
		})
	}
}

func TestLongNames(t *testing.T) {
	admin := start(t)
	for _, kind := range []struct {
		crd    string
		object *unstructured.Unstructured
	}{
		{"hostedclusters.autonode.io", object("autonode.io/v1beta1", "HostedCluster", map[string]any{"release": map[string]any{"image": "registry.example/release:1.36.3"}})},
		{"clusterapinodeclasses.karpenter.cluster.x-k8s.io", object("karpenter.cluster.x-k8s.io/v1alpha1", "ClusterAPINodeClass", map[string]any{})},
	} {
		t.Run("When a "+kind.object.GetKind()+" is older than the limit of its name, it should still lose its finalizer", func(t *testing.T) {
			g := NewWithT(t)
			crd := &apiextensionsv1.CustomResourceDefinition{}
			g.Expect(admin.Get(t.Context(), client.ObjectKey{Name: kind.crd}, crd)).To(Succeed())
			rules := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.XValidations
			g.Expect(rules).NotTo(BeEmpty())
			set := func(rules apiextensionsv1.ValidationRules) {
				before := crd.DeepCopy()
				crd.Spec.Versions[0].Schema.OpenAPIV3Schema.XValidations = rules
				g.Expect(admin.Patch(t.Context(), crd, client.MergeFrom(before))).To(Succeed())
			}
			set(nil)
			g.Eventually(func() error { return admin.Create(t.Context(), kind.object.DeepCopy()) }).Should(Succeed())
			set(rules)
			another := kind.object.DeepCopy()
			another.SetName("another-" + another.GetName())
			g.Eventually(func() error { return admin.Create(t.Context(), another.DeepCopy(), client.DryRunAll) }).
				Should(MatchError(ContainSubstring("at most 63 characters")))

			found := kind.object.DeepCopy()
			g.Expect(admin.Get(t.Context(), client.ObjectKeyFromObject(found), found)).To(Succeed())
			g.Expect(admin.Delete(t.Context(), found)).To(Succeed())
			g.Expect(admin.Patch(t.Context(), found, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
			g.Expect(admin.Get(t.Context(), client.ObjectKeyFromObject(found), found)).To(MatchError(apierrors.IsNotFound, "IsNotFound"))
		})
	}
}

func object(version, kind string, spec map[string]any) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": version, "kind": kind, "spec": spec}}
	object.SetNamespace("default")
	object.SetName(strings.Repeat("n", 64))
	object.SetFinalizers([]string{"example.com/held"})
	return object
}

func decode(g *WithT, content []byte) []*unstructured.Unstructured {
	var objects []*unstructured.Unstructured
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return objects
		}
		g.Expect(err).NotTo(HaveOccurred())
		objects = append(objects, object)
	}
}

func apply(ctx context.Context, admin client.Client, object *unstructured.Unstructured) error {
	return admin.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("test"), client.ForceOwnership)
}
