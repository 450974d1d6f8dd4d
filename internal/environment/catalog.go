// SPDX-License-Identifier: Apache-2.0

package environment

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/profile"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// Objects are management objects without an API server, for template.Resolver.
type Objects []*unstructured.Unstructured

// List implements template.Objects.
func (o Objects) List(_ context.Context, kind schema.GroupKind, selector labels.Selector) (found []*unstructured.Unstructured, err error) {
	for _, object := range o {
		if object.GroupVersionKind().GroupKind() == kind && selector.Matches(labels.Set(object.GetLabels())) {
			found = append(found, object)
		}
	}
	return found, nil
}

// Get implements template.Objects.
func (o Objects) Get(_ context.Context, kind schema.GroupKind, name string) (*unstructured.Unstructured, error) {
	i := slices.IndexFunc(o, func(object *unstructured.Unstructured) bool {
		return object.GroupVersionKind().GroupKind() == kind && object.GetName() == name
	})
	if i < 0 {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, name)
	}
	return o[i], nil
}

// Resolver reads the objects of a FleetCatalog.
func (o Objects) Resolver() *template.Resolver {
	return template.NewResolver(template.Config{
		Objects: o, ClusterName: FleetCluster, Namespace: FleetNamespace, Secrets: Secrets{}, Profiles: profile.Embedded(),
	})
}

// Secrets is an API server that has every Secret.
type Secrets struct{ client.Reader }

// Get implements client.Reader.
func (Secrets) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return nil
}

// FleetCatalogName is the name of a FleetCatalog and of its template.
const FleetCatalogName = "general"

// FleetCatalog returns a Cluster, a template and a catalog of that many instance types, each in three zones and three capacity types.
func FleetCatalog(types int) Objects {
	entries := make([]any, types)
	for i := range types {
		cores, price := int64(i%64+1), 0.01*float64(i+1)
		reserved := func(zone string) any {
			return map[string]any{
				"zones": []any{zone}, "capacityType": "reserved", "price": fmt.Sprintf("%.4f", price/2),
				"reservation": map[string]any{"id": fmt.Sprintf("r-%d-%s", i, zone), "count": int64(5)},
			}
		}
		entries[i] = map[string]any{
			"name":         fmt.Sprintf("t-%d", i),
			"capacity":     map[string]any{"cpu": cores, "memory": fmt.Sprintf("%dGi", 2*cores), "ephemeral-storage": "100Gi"},
			"architecture": "amd64",
			"offerings": []any{
				map[string]any{"zones": []any{"a", "b", "c"}, "capacityType": "on-demand", "price": fmt.Sprintf("%.4f", price)},
				map[string]any{"zones": []any{"a", "b", "c"}, "capacityType": "spot", "price": fmt.Sprintf("%.4f", price/3)},
				reserved("a"), reserved("b"), reserved("c"),
			},
		}
	}
	variable := func(path, name string) any {
		return map[string]any{"op": "add", "path": path, "valueFrom": map[string]any{"variable": name}}
	}
	return Objects{
		{Object: map[string]any{
			"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
			"metadata": map[string]any{"namespace": FleetNamespace, "name": FleetCluster},
			"status": map[string]any{"initialization": map[string]any{"infrastructureProvisioned": true}, "failureDomains": []any{
				map[string]any{"name": "a"}, map[string]any{"name": "b"}, map[string]any{"name": "c"},
			}},
		}},
		{Object: map[string]any{
			"apiVersion": TestMachine.GroupVersion().String(), "kind": "TestMachineTemplate",
			"metadata": map[string]any{
				"namespace": FleetNamespace, "name": FleetCatalogName, "uid": "template", "generation": int64(1), "resourceVersion": "1",
			},
			"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"size": "any"}}},
		}},
		{Object: map[string]any{
			"apiVersion": v1alpha1.GroupVersion.String(), "kind": template.CatalogKind.Kind,
			"metadata": map[string]any{
				"namespace": FleetNamespace, "name": FleetCatalogName, "uid": "catalog", "generation": int64(1), "resourceVersion": "1",
			},
			"spec": map[string]any{
				"templateRef": map[string]any{"apiGroup": TestMachine.Group, "kind": "TestMachineTemplate", "name": FleetCatalogName},
				"patches": []any{
					variable("/spec/size", "instanceType"), variable("/spec/capacityType", "capacityType"),
					variable("/spec/reservation", "reservationID"),
				},
				"instanceTypes": entries,
			},
		}},
	}
}

// Catalog returns the last object, the catalog of FleetCatalog.
func (o Objects) Catalog() *unstructured.Unstructured { return o[len(o)-1] }

// ChangeCatalog replaces the catalog with one of the next generation whose entry at an index has been changed.
func (o Objects) ChangeCatalog(index int, change func(entry map[string]any)) {
	changed := o.Catalog().DeepCopy()
	changed.SetGeneration(changed.GetGeneration() + 1)
	entries, _, _ := unstructured.NestedFieldNoCopy(changed.Object, "spec", "instanceTypes")
	change(entries.([]any)[index].(map[string]any))
	o[len(o)-1] = changed
}

// CatalogNodeClass selects every catalog.
func CatalogNodeClass() *v1alpha1.ClusterAPINodeClass {
	return &v1alpha1.ClusterAPINodeClass{
		ObjectMeta: metav1.ObjectMeta{Name: FleetNodeClass, UID: "1", Generation: 1},
		Spec: v1alpha1.ClusterAPINodeClassSpec{
			TemplateSelectors: v1alpha1.TemplateSelectors{CatalogSelectors: []v1alpha1.CatalogSelector{{}}},
			Bootstrap:         &v1alpha1.Bootstrap{DataSecretName: "join"},
		},
	}
}
