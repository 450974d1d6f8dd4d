// SPDX-License-Identifier: Apache-2.0

// Package apply writes objects by server-side apply, with one field owner, and calls the API server only if something
// changed.
package apply

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/lru"
)

const (
	// FieldOwner is the operator's name in managedFields, the same for everything that it writes by server-side apply.
	FieldOwner = v1beta1.ManagedByOperator
	// LabelManagedBy is put on every object that is applied, with FieldOwner as its value, so that caches can be restricted to them.
	LabelManagedBy = v1beta1.ManagedByLabel
)

// Applier applies objects. It remembers the last object that it applied and the resource version that came of it; as long as neither the
// desired object nor the live one has changed since, it makes no request. One Applier serves any number of clusters and is safe for
// concurrent use.
type Applier struct {
	applied lru.Cache[types.UID, entry]
}

// remembered limits an Applier's memory, at about 150 bytes per object. A forgotten object costs one request that
// changes nothing.
const remembered = 1 << 16

// entry: an object with this resource version holds the content that hash was made of.
type entry struct {
	hash            [sha256.Size]byte
	resourceVersion string
}

// New returns an Applier that remembers nothing.
func New() *Applier {
	return &Applier{applied: lru.New[types.UID, entry](remembered)}
}

// Objects applies objs in their order; ownership of the fields named is forced, because the operator heals the fields that it owns. Of some
// kinds it owns everything but metadata and status: see whole.
// An owner that isn't nil (it must be of the same cluster, and of the same namespace or cluster-scoped) becomes the objects'
// controller, so that they are garbage collected with it. The objects passed in are not changed, and their status is left out.
//
// The live objects' metadata is read through cluster, so that a client with a cache makes this a look into memory; it starts a
// metadata-only informer for each kind, and its cache may be restricted to the label LabelManagedBy. Errors are those of the
// API server, wrapped with the object's kind and name; objects after one that failed are applied all the same, and the errors are joined.
func (a *Applier) Objects(ctx context.Context, cluster client.Client, owner client.Object, objs ...client.Object) error {
	var errs []error
	for _, obj := range objs {
		if _, err := a.Object(ctx, cluster, owner, obj); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Object is Objects for one of them. It returns the generation of the applied object, which a cache may not have yet.
func (a *Applier) Object(ctx context.Context, cluster client.Client, owner, obj client.Object) (generation int64, err error) {
	desired, err := desire(cluster.Scheme(), owner, obj)
	if err != nil {
		return 0, err
	}
	gvk := desired.GroupVersionKind()
	describe := func(doing string, err error) (int64, error) {
		return 0, fmt.Errorf("%s %s %s: %w", doing, gvk.Kind, klog.KObj(desired), err)
	}
	hash, err := hashOf(desired)
	if err != nil {
		return describe("hashing", err)
	}

	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(gvk)
	switch err := cluster.Get(ctx, client.ObjectKeyFromObject(desired), live); {
	case apierrors.IsNotFound(err):
		live = nil
	case err != nil:
		return describe("reading", err)
	case a.upToDate(live, hash):
		return live.Generation, nil
	}

	key, wanted := client.ObjectKeyFromObject(desired), desired.DeepCopy()
	apply := func() error {
		return cluster.Apply(ctx, client.ApplyConfigurationFromUnstructured(desired), client.FieldOwner(FieldOwner), client.ForceOwnership)
	}
	err = apply()
	if apierrors.IsInvalid(err) && whole.Has(gvk.GroupKind()) {
		// Another field manager's fields conflict with ours. If there are none, ours are invalid.
		switch replaced := replace(ctx, cluster, wanted); {
		case replaced == nil:
			desired = wanted.DeepCopy()
			err = apply()
		case !apierrors.IsNotFound(replaced):
			err = replaced
		}
	}
	if apierrors.IsInvalid(err) && live != nil && replaceable.Has(gvk.GroupKind()) {
		// The binding refers to another role, and a binding's role is immutable.
		if err := cluster.Delete(ctx, live, client.Preconditions{UID: &live.UID}); client.IgnoreNotFound(err) != nil {
			return describe("replacing", err)
		}
		desired = wanted.DeepCopy()
		err = apply()
	}
	if err != nil {
		return describe("applying", err)
	}
	// The response has replaced the content of desired.
	cleansed, err := cleanse(ctx, cluster, desired, wanted)
	if err != nil {
		return describe("healing", err)
	}
	now := entry{hash: hash, resourceVersion: desired.GetResourceVersion()}
	known, ok := a.applied.Get(desired.GetUID())
	a.applied.Add(desired.GetUID(), now)
	unchanged := live != nil && live.ResourceVersion == now.resourceVersion ||
		ok && known.resourceVersion == now.resourceVersion // the cache lags
	if !unchanged || cleansed {
		log.FromContext(ctx).Info("Applied object", gvk.Kind, klog.KRef(key.Namespace, key.Name), "created", live == nil)
	}
	return desired.GetGeneration(), nil
}

// replaceable kinds hold no state and have an immutable field.
var replaceable = sets.New(
	schema.GroupKind{Group: "rbac.authorization.k8s.io", Kind: "RoleBinding"},
	schema.GroupKind{Group: "rbac.authorization.k8s.io", Kind: "ClusterRoleBinding"},
)

// upToDate is false while the cache lags behind our own write; the apply that follows then changes nothing.
func (a *Applier) upToDate(live *metav1.PartialObjectMetadata, hash [sha256.Size]byte) bool {
	known, ok := a.applied.Get(live.UID)
	return ok && live.DeletionTimestamp == nil && known == entry{hash: hash, resourceVersion: live.ResourceVersion}
}

// desire makes of obj the object to send: without the fields that the API server owns.
func desire(scheme *runtime.Scheme, owner, obj client.Object) (*unstructured.Unstructured, error) {
	gvk, err := apiutil.GVKForObject(obj, scheme)
	if err != nil {
		return nil, fmt.Errorf("finding the kind of %T: %w", obj, err)
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, fmt.Errorf("converting %s %s: %w", gvk.Kind, klog.KObj(obj), err)
	}
	desired := (&unstructured.Unstructured{Object: content}).DeepCopy()
	desired.SetGroupVersionKind(gvk)
	desired.SetManagedFields(nil)
	desired.SetResourceVersion("")
	desired.SetUID("")
	desired.SetGeneration(0)
	delete(desired.Object, "status")
	pruneNulls(desired.Object)
	unstructured.RemoveNestedField(desired.Object, "metadata", "creationTimestamp")

	labels := desired.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[LabelManagedBy] = FieldOwner
	desired.SetLabels(labels)
	if owner != nil {
		if err := controllerutil.SetControllerReference(owner, desired, scheme); err != nil {
			return nil, fmt.Errorf("setting the owner of %s %s: %w", gvk.Kind, klog.KObj(desired), err)
		}
	}
	return desired, nil
}

// pruneNulls removes null values: typed objects have them for zero times, and applying one would own a field without
// a value.
func pruneNulls(object map[string]any) {
	for key, value := range object {
		switch value := value.(type) {
		case nil:
			delete(object, key)
		case map[string]any:
			pruneNulls(value)
		case []any:
			for _, item := range value {
				if m, ok := item.(map[string]any); ok {
					pruneNulls(m)
				}
			}
		}
	}
}

// hashOf relies on encoding/json, which sorts a map's keys.
func hashOf(u *unstructured.Unstructured) ([sha256.Size]byte, error) {
	data, err := json.Marshal(u.Object)
	if err != nil {
		return [sha256.Size]byte{}, err
	}
	return sha256.Sum256(data), nil
}
