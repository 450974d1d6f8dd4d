// SPDX-License-Identifier: Apache-2.0

package lenient

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/karpenter/pkg/apis"
	_ "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1" // these register their types in client-go's scheme
	_ "sigs.k8s.io/karpenter/pkg/apis/v1"
	_ "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/assets/crds"
)

// extremes are values that some schema admits, and that some type of Go can't hold.
var extremes = []any{
	"2026-12-01t06:00:00z", "2026-12-01T06:00:00+99:99", "2026-12-01T23:59:60Z", "0000-01-01T00:00:00Z", "",
	"1e1.5", "1e-999999999", "1e9999", strings.Repeat("9", 300), "1ki", ".", "+-1",
	"99999999999999999999h", "9223372036854775807ns1h", "1d", "1.h", "never",
	json.Number("2147483648"), json.Number("-2147483649"), json.Number("9223372036854775808"), json.Number("17179869184"), json.Number("1e300"), json.Number("1.5"),
	json.Number("-1"), true, []any{}, map[string]any{},
}

// crdsOf are the definitions of all kinds that a program of ours reads typed.
func crdsOf(t *testing.T) []*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	g := NewWithT(t)
	definitions, err := crds.Embedded()
	g.Expect(err).NotTo(HaveOccurred())
	buffer := &apiextensionsv1.CustomResourceDefinition{}
	g.Expect(yaml.Unmarshal(apis.CapacityBufferCRD, buffer)).To(Succeed())
	definitions = append(definitions, buffer)
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/cluster-api", "github.com/autonode-io/autonode").Output()
	g.Expect(err).NotTo(HaveOccurred())
	clusterAPI, own, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	for _, pattern := range []string{clusterAPI + "/core/config/crd/bases/cluster.x-k8s.io_*.yaml", own + "/manifests/crds/*.yaml"} {
		files, err := filepath.Glob(pattern)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(files).NotTo(BeEmpty(), pattern)
		for _, file := range files {
			raw, err := os.ReadFile(file)
			g.Expect(err).NotTo(HaveOccurred())
			definition := &apiextensionsv1.CustomResourceDefinition{}
			g.Expect(yaml.Unmarshal(raw, definition)).To(Succeed())
			definitions = append(definitions, definition)
		}
	}
	return definitions
}

func testScheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	g := NewWithT(t)
	for _, add := range []func(*runtime.Scheme) error{clusterv1.AddToScheme, v1beta1.AddToScheme, autonodev1alpha1.AddToScheme, v1alpha1.AddToScheme} {
		g.Expect(add(clientgoscheme.Scheme)).To(Succeed())
	}
	return clientgoscheme.Scheme
}

// leaf is a place in a kind's schema, with a value for it.
type leaf struct {
	path  string
	value any
	// object contains nothing else.
	object map[string]any
}

// leaves calls with each place of a schema that isn't a structure, and each value that the schema admits there.
func leaves(g Gomega, path string, schema *apiextensionsv1.JSONSchemaProps, within func(any) map[string]any, found func(leaf)) {
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		property := schema.Properties[name]
		leaves(g, path+"."+name, &property, func(value any) map[string]any { return within(map[string]any{name: value}) }, found)
	}
	if schema.Items != nil && schema.Items.Schema != nil {
		leaves(g, path+"[0]", schema.Items.Schema, func(value any) map[string]any { return within([]any{value}) }, found)
	}
	if schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil {
		leaves(g, path+".cpu", schema.AdditionalProperties.Schema, func(value any) map[string]any { return within(map[string]any{"cpu": value}) }, found)
	}
	if schema.XPreserveUnknownFields != nil && len(schema.Properties) > 0 { // any value of an unknown field is admitted
		for _, value := range extremes {
			found(leaf{path: strings.TrimPrefix(path+".unknown", "."), value: value, object: within(map[string]any{"unknown": value})})
		}
	}
	if len(schema.Properties) > 0 {
		return // those without required fields are found below
	}
	internal := &apiextensions.JSONSchemaProps{}
	g.Expect(apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(schema, internal, nil)).To(Succeed())
	validator, _, err := validation.NewSchemaValidator(internal)
	g.Expect(err).NotTo(HaveOccurred())
	for _, value := range extremes {
		// The API server decodes numbers into int64 and float64 before it validates them.
		raw, err := json.Marshal(value)
		g.Expect(err).NotTo(HaveOccurred())
		var decoded any
		if kjson.UnmarshalCaseSensitivePreserveInts(raw, &decoded) != nil {
			continue
		}
		if len(validation.ValidateCustomResource(nil, decoded, validator)) > 0 {
			continue
		}
		found(leaf{path: strings.TrimPrefix(path, "."), value: value, object: within(value)})
	}
}

// TestWalk feeds every field of every kind that is read typed with extremes that its schema admits.
func TestWalk(t *testing.T) {
	g, scheme := NewWithT(t), testScheme(t)
	now := time.Date(2026, 12, 1, 6, 0, 0, 0, time.UTC)
	bad := map[string]int{}
	for _, definition := range crdsOf(t) {
		for _, version := range definition.Spec.Versions {
			gvk := schema.GroupVersionKind{Group: definition.Spec.Group, Version: version.Name, Kind: definition.Spec.Names.Kind}
			if !scheme.Recognizes(gvk) || version.Schema == nil {
				continue
			}
			properties := version.Schema.OpenAPIV3Schema.DeepCopy()
			for _, own := range []string{"apiVersion", "kind", "metadata"} {
				delete(properties.Properties, own)
			}
			leaves(g, "", properties, func(value any) map[string]any { return value.(map[string]any) }, func(l leaf) {
				l.object["apiVersion"], l.object["kind"] = gvk.GroupVersion().String(), gvk.Kind
				l.object["metadata"] = map[string]any{
					"name": "one", "namespace": "clusters-blue", "uid": "1", "resourceVersion": "7", "labels": map[string]any{"a": "b"},
					"finalizers": []any{"f"}, "creationTimestamp": now.Format(time.RFC3339), "deletionTimestamp": now.Format(time.RFC3339),
				}
				raw, err := json.Marshal(l.object)
				g.Expect(err).NotTo(HaveOccurred())
				what := fmt.Sprintf("%s %s = %v", gvk.Kind, l.path, l.value)
				made, err := scheme.New(gvk)
				g.Expect(err).NotTo(HaveOccurred())
				object, ok := made.(client.Object)
				g.Expect(ok).To(BeTrue())
				decoded, problems, err := Decode(raw, object, standard)
				g.Expect(err).NotTo(HaveOccurred(), what)
				g.Expect(kjson.UnmarshalCaseSensitivePreserveInts(decoded, reflect.New(reflect.TypeOf(object).Elem()).Interface())).To(Succeed(), what)
				g.Expect(object.GetResourceVersion()+object.GetLabels()["a"]+object.GetFinalizers()[0]).To(Equal("7bf"), what)
				g.Expect(object.GetDeletionTimestamp()).NotTo(BeNil(), what)
				if len(problems) == 0 {
					g.Expect(decoded).To(Equal(raw), what)
					return
				}
				bad[gvk.Group+" "+gvk.Kind]++
				g.Expect(problems).To(HaveExactElements(HavePrefix(strings.ReplaceAll(l.path, "[0]", ".0"))), what)
			})
		}
	}
	// So that the walk can't find nothing, and that each kind that needs it goes through the Decoder.
	for _, kind := range []string{"Machine", "MachineDeployment", "Cluster"} {
		g.Expect(bad).To(HaveKeyWithValue(clusterv1.GroupVersion.Group+" "+kind, BeNumerically(">", 0)), "%v", bad)
	}
	for kind := range bad {
		g.Expect(kind).To(Or(HavePrefix(clusterv1.GroupVersion.Group+" "), HavePrefix("karpenter.sh "), HavePrefix("autoscaling.x-k8s.io ")), "%v", bad)
	}
}
