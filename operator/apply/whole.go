// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// whole kinds change their meaning with a foreign field: a condition added to a policy disables it, an
// aggregationRule replaces a role's rules, a conversion makes a CRD unreadable. An apply leaves such fields alone.
// Metadata stays shared.
var whole = sets.New(
	schema.GroupKind{Group: "admissionregistration.k8s.io", Kind: "ValidatingAdmissionPolicy"},
	schema.GroupKind{Group: "admissionregistration.k8s.io", Kind: "ValidatingAdmissionPolicyBinding"},
	schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"},
	schema.GroupKind{Group: "rbac.authorization.k8s.io", Kind: "ClusterRole"},
	schema.GroupKind{Group: "rbac.authorization.k8s.io", Kind: "ClusterRoleBinding"},
)

// cleanse removes foreign fields from an object of a whole kind that was just applied. applied is the API server's
// response before and after; wanted is the object that was sent.
func cleanse(ctx context.Context, cluster client.Client, applied, wanted *unstructured.Unstructured) (bool, error) {
	if !whole.Has(applied.GroupVersionKind().GroupKind()) {
		return false, nil
	}
	switch foreign, err := hasForeign(applied.GetManagedFields()); {
	case err != nil:
		return false, fmt.Errorf("reading whose its fields are: %w", err)
	case !foreign:
		return false, nil
	}
	clean := wanted.DeepCopy()
	clean.Object["metadata"] = applied.Object["metadata"]
	if err := cluster.Update(ctx, clean, client.FieldOwner(FieldOwner)); err != nil {
		return false, fmt.Errorf("removing others' fields: %w", err)
	}
	applied.Object = clean.Object
	return true, nil
}

// replace replaces everything but the metadata with wanted's. It writes the labels first, which returns the
// other metadata, whether or not a cache has the object.
func replace(ctx context.Context, cluster client.Client, wanted *unstructured.Unstructured) error {
	labels, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": wanted.GetLabels()}})
	if err != nil {
		return err
	}
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(wanted.GroupVersionKind())
	live.SetNamespace(wanted.GetNamespace())
	live.SetName(wanted.GetName())
	if err := cluster.Patch(ctx, live, client.RawPatch(types.MergePatchType, labels), client.FieldOwner(FieldOwner)); err != nil {
		return err
	}
	clean := wanted.DeepCopy()
	// Use the response's version: a concurrent write conflicts and is read again.
	clean.SetResourceVersion(live.ResourceVersion)
	clean.SetUID(live.UID)
	clean.SetFinalizers(live.Finalizers)
	clean.SetOwnerReferences(live.OwnerReferences)
	clean.SetLabels(live.Labels)
	annotations := maps.Clone(live.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	maps.Copy(annotations, wanted.GetAnnotations())
	clean.SetAnnotations(annotations)
	return cluster.Update(ctx, clean, client.FieldOwner(FieldOwner))
}

// hasForeign reports whether another field manager owns a field outside metadata and status that neither is nor
// contains one of ours.
func hasForeign(entries []metav1.ManagedFieldsEntry) (bool, error) {
	ours, theirs := fieldpath.NewSet(), fieldpath.NewSet()
	for i := range entries {
		entry := &entries[i]
		if entry.Subresource != "" || entry.FieldsV1 == nil {
			continue
		}
		fields := &fieldpath.Set{}
		if err := fields.FromJSON(entry.FieldsV1.GetRawReader()); err != nil {
			return false, err
		}
		if entry.Manager == FieldOwner {
			ours = ours.Union(fields)
		} else {
			theirs = theirs.Union(fields)
		}
	}
	foreign := false
	theirs.Iterate(func(path fieldpath.Path) { // not All, which doesn't end when its loop does
		if first := path[0].FieldName; first != nil && (*first == "metadata" || *first == "status") {
			return
		}
		within := ours
		for _, element := range path {
			within = within.WithPrefix(element)
		}
		foreign = foreign || !ours.Has(path) && within.Empty()
	})
	return foreign, nil
}
