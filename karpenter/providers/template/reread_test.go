// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// TestReread changes a catalog step by step. What the same process finds has to be what another one finds that reads it for the first time.
func TestReread(t *testing.T) {
	changes := map[string]func(entry map[string]any){
		"a price": func(e map[string]any) {
			e["offerings"].([]any)[0].(map[string]any)["price"] = fmt.Sprint(rand.IntN(100))
		},
		"a capacity":     func(e map[string]any) { e["capacity"].(map[string]any)["memory"] = "7Gi" },
		"no capacity":    func(e map[string]any) { delete(e, "capacity") },
		"another's name": func(e map[string]any) { e["name"] = "t-3" },
		"a new name":     func(e map[string]any) { e["name"] = fmt.Sprint("n-", rand.IntN(100)) },
		"patches": func(e map[string]any) {
			e["patches"] = []any{map[string]any{"op": "add", "path": "/spec/a", "value": "b"}}
		},
		"a wrong type":  func(e map[string]any) { e["offerings"] = "none" },
		"a wrong price": func(e map[string]any) { e["offerings"].([]any)[0].(map[string]any)["price"] = "free" },
	}
	for name, change := range changes {
		t.Run("When an entry gets "+name+", it should be as if the catalog was read for the first time", func(t *testing.T) {
			objects := environment.FleetCatalog(40)
			find := func(r *template.Resolver) *template.Found {
				found, err := r.Resolve(t.Context(), environment.CatalogNodeClass())
				NewWithT(t).Expect(err).NotTo(HaveOccurred())
				return found
			}
			compare := func(kept *template.Resolver) {
				t.Helper()
				got, want := find(kept), find(objects.Resolver())
				if !reflect.DeepEqual(got.Templates, want.Templates) || fmt.Sprint(got.Invalid, got.Closed) != fmt.Sprint(want.Invalid, want.Closed) {
					t.Errorf("got %d templates, %v, %v; want %d, %v, %v", len(got.Templates), got.Invalid, got.Closed, len(want.Templates), want.Invalid, want.Closed)
				}
			}
			kept := objects.Resolver()
			compare(kept)
			objects.ChangeCatalog(5, change)
			compare(kept)
			objects.ChangeCatalog(7, changes["a price"])
			compare(kept)
			for field, change := range map[string]func([]any) []any{
				"instanceTypes": func(entries []any) []any { return entries[1:] },
				"patches": func(patches []any) []any {
					return append(patches, map[string]any{"op": "add", "path": "/spec/all", "value": "c"})
				},
			} {
				catalog := objects.Catalog().DeepCopy()
				catalog.SetGeneration(catalog.GetGeneration() + 1)
				list, _, _ := unstructured.NestedSlice(catalog.Object, "spec", field)
				NewWithT(t).Expect(unstructured.SetNestedSlice(catalog.Object, change(list), "spec", field)).To(Succeed())
				objects[len(objects)-1] = catalog
				compare(kept)
			}
		})
	}
}
