// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	kjson "sigs.k8s.io/json"
	_ "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1" // these register their types in client-go's scheme
	_ "sigs.k8s.io/karpenter/pkg/apis/v1"
	_ "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/operator/provider/clusterapi"
)

// extremes are values that some schema admits, and that some type of Go can't decode.
var extremes = []any{
	"2026-12-01t06:00:00z", "2026-12-01T06:00:00+99:99", "2026-12-01T23:59:60Z", "2026-02-29T06:00:00Z", "2026-12-01T06:00:00,5Z",
	"2026-12-01T06:00:00ZT", "0000-01-01T00:00:00Z", "",
	"1e1.5", "1e-999999999", "1e9999", strings.Repeat("9", 300), "1ki", ".", "+-1",
	"99999999999999999999h", "9999999h", "99999999m", "9999999999s", strings.Repeat("999999h", 3), "9223372036854775807ns1h", "1d", "1.h", "never",
	json.Number("2147483648"), json.Number("-2147483649"), json.Number("9223372036854775808"), json.Number("1e300"), json.Number("1.5"),
	true, []any{}, []any{"a"}, map[string]any{},
}

// walk calls visit with each value in a schema that isn't an object or a list, and with an object that contains only that value.
func walk(path string, s *apiextensionsv1.JSONSchemaProps, within func(any) any, visit func(string, *apiextensionsv1.JSONSchemaProps, func(any) any)) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		property := s.Properties[name]
		walk(path+"."+name, &property, func(value any) any { return within(map[string]any{name: value}) }, visit)
	}
	if s.Items != nil && s.Items.Schema != nil {
		walk(path+"[0]", s.Items.Schema, func(value any) any { return within([]any{value}) }, visit)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		walk(path+".cpu", s.AdditionalProperties.Schema, func(value any) any { return within(map[string]any{"cpu": value}) }, visit)
	}
	if len(s.Properties) == 0 {
		visit(strings.TrimPrefix(path, "."), s, within)
	}
}

func TestDecodable(t *testing.T) {
	g := NewWithT(t)
	g.Expect(v1alpha1.AddToScheme(clientgoscheme.Scheme)).To(Succeed())
	definitions, _, err := desiredFor(clusterapi.New(clusterapi.DefaultGroups), nil)
	g.Expect(err).NotTo(HaveOccurred())
	places := 0
	for _, definition := range definitions {
		for _, version := range definition.Spec.Versions {
			gvk := schema.GroupVersionKind{Group: definition.Spec.Group, Version: version.Name, Kind: definition.Spec.Names.Kind}
			kind, known := clientgoscheme.Scheme.AllKnownTypes()[gvk]
			if !known {
				continue // Karpenter reads another version
			}
			root := version.Schema.OpenAPIV3Schema
			delete(root.Properties, "metadata") // the API server decodes it
			walk("", root, func(value any) any { return value }, func(path string, s *apiextensionsv1.JSONSchemaProps, within func(any) any) {
				internal := &apiextensions.JSONSchemaProps{}
				g.Expect(apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(s, internal, nil)).To(Succeed())
				validator, _, err := validation.NewSchemaValidator(internal)
				g.Expect(err).NotTo(HaveOccurred())
				places++
				for _, value := range extremes {
					raw, err := json.Marshal(within(value))
					g.Expect(err).NotTo(HaveOccurred())
					of := fmt.Sprintf("%s %s = %.32v", gvk.Kind, path, value)
					// The API server decodes numbers into int64 and float64 before it validates them.
					text, err := json.Marshal(value)
					g.Expect(err).NotTo(HaveOccurred())
					var decoded any
					if kjson.UnmarshalCaseSensitivePreserveInts(text, &decoded) != nil || len(validation.ValidateCustomResource(nil, decoded, validator)) > 0 {
						continue
					}
					if s.XIntOrString && gvk.Group != v1alpha1.Group { // our own types bound what they parse
						g.Expect(value).NotTo(BeElementOf("1e-999999999", "1e9999", strings.Repeat("9", 300)), "%s: it takes too long to parse", of)
					}
					g.Expect(kjson.UnmarshalCaseSensitivePreserveInts(raw, reflect.New(kind).Interface())).To(Succeed(), of)
				}
			})
		}
	}
	g.Expect(places).To(BeNumerically(">", 100))
}
