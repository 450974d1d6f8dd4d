// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/manifests"
)

// Prunable are the kinds that an installation deletes when it doesn't render an object any more. CRDs and Namespaces aren't among them:
// what is in them would go, too. A kind that the manifests stop using stays here, because versions before have installed objects of it.
var Prunable = []schema.GroupVersionKind{
	{Group: "monitoring.coreos.com", Version: "v1", Kind: "PrometheusRule"},
	{Group: "monitoring.coreos.com", Version: "v1", Kind: "PodMonitor"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingAdmissionPolicyBinding"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingAdmissionPolicy"},
	{Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy"},
	{Group: "policy", Version: "v1", Kind: "PodDisruptionBudget"},
	{Group: "apps", Version: "v1", Kind: "Deployment"},
	{Version: "v1", Kind: "ConfigMap"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRoleBinding"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "RoleBinding"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "Role"},
	{Version: "v1", Kind: "ServiceAccount"},
}

// marked returns a copy with the label of what an Installer applies.
func marked(object *unstructured.Unstructured) *unstructured.Unstructured {
	object = object.DeepCopy()
	object.SetLabels(labels.Merge(object.GetLabels(), labels.Set{v1beta1.ManagedByLabel: owner}))
	return object
}

// Prune deletes what an Installer has applied before and the objects don't contain: Apply's of another version, or with other options.
func (i *Installer) Prune(ctx context.Context, objects []*unstructured.Unstructured) error {
	rendered := sets.New[string]()
	for _, object := range objects {
		rendered.Insert(named(object))
	}
	applied, err := i.applied(ctx)
	if err != nil {
		return err
	}
	return i.remove(ctx, slices.DeleteFunc(applied, func(object *unstructured.Unstructured) bool { return rendered.Has(named(object)) }))
}

// applied lists what an Installer has applied, but for the kinds that aren't Prunable and the guard of the CRDs.
func (i *Installer) applied(ctx context.Context) ([]*unstructured.Unstructured, error) {
	var found []*unstructured.Unstructured
	for _, kind := range Prunable {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind)
		mapping, err := i.Management.RESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
		if meta.IsNoMatchError(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("looking for %s: %w", kind.Kind, err)
		}
		opts := []client.ListOption{client.MatchingLabels{v1beta1.ManagedByLabel: owner}}
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			opts = append(opts, client.InNamespace(manifests.Namespace))
		}
		if err := i.Management.List(ctx, list, opts...); err != nil {
			return nil, fmt.Errorf("listing %s: %w", kind.Kind, err)
		}
		for j := range list.Items {
			object := &list.Items[j]
			// A copy of an object has its labels, but not its field manager.
			ours := slices.ContainsFunc(object.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool {
				return entry.Manager == owner && entry.Operation == metav1.ManagedFieldsOperationApply
			})
			if ours && object.GetName() != manifests.Guard {
				found = append(found, object)
			}
		}
	}
	return found, nil
}
