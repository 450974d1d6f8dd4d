// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// Get implements client.Reader.
func (s *Store) Get(ctx context.Context, name client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	key, err := s.keyOf(into)
	if err != nil {
		return err
	}
	k, err := s.watched(key)
	if err != nil {
		return err
	}
	if k == nil {
		return s.Client.Get(ctx, name, into, opts...)
	}
	if err := s.listed(ctx, k); err != nil {
		return err
	}
	options := (&client.GetOptions{}).ApplyOptions(opts)
	found, err := k.get(name)
	if err != nil {
		return err
	}
	found = k.out(found, key.partial, ptr.Deref(options.UnsafeDisableDeepCopy, false))
	to, from := reflect.ValueOf(into), reflect.ValueOf(found)
	if !from.Type().AssignableTo(to.Type()) {
		return fmt.Errorf("the store has %T, not %T", found, into)
	}
	reflect.Indirect(to).Set(reflect.Indirect(from))
	return nil
}

// List implements client.Reader. Of field selectors it understands one field of Index.
func (s *Store) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	gvk, err := apiutil.GVKForObject(into, s.Scheme())
	if err != nil {
		return fmt.Errorf("finding the kind of %T: %w", into, err)
	}
	gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
	_, partial := into.(*metav1.PartialObjectMetadataList)
	k, err := s.watched(kindKey{gvk, partial})
	if err != nil {
		return err
	}
	if k == nil {
		return s.Client.List(ctx, into, opts...)
	}
	if err := s.listed(ctx, k); err != nil {
		return err
	}
	options := (&client.ListOptions{}).ApplyOptions(opts)
	found, err := k.list(options)
	if err != nil {
		return err
	}
	items := make([]runtime.Object, 0, len(found))
	for _, object := range found {
		items = append(items, k.out(object, partial, ptr.Deref(options.UnsafeDisableDeepCopy, false)))
	}
	return meta.SetList(into, items)
}

func (k *kind) get(name client.ObjectKey) (client.Object, error) {
	key := name.Name
	if k.namespaced && name.Namespace != "" {
		key = name.String()
	}
	found, exists, err := k.objects.GetByKey(key)
	if err != nil {
		return nil, err
	}
	object, ok := found.(client.Object)
	if !exists || !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: k.gvk.Group, Resource: k.gvk.Kind}, name.Name)
	}
	return object, nil
}

func (k *kind) list(options *client.ListOptions) ([]client.Object, error) {
	if options.Continue != "" || options.Limit != 0 {
		return nil, errors.New("the store lists without pages")
	}
	objects := k.objects.List()
	if options.FieldSelector != nil {
		requirements := options.FieldSelector.Requirements()
		if len(requirements) != 1 {
			return nil, fmt.Errorf("the store has no index for %s", options.FieldSelector)
		}
		value, exact := options.FieldSelector.RequiresExactMatch(requirements[0].Field)
		if !exact {
			return nil, fmt.Errorf("the store has no index for %s", options.FieldSelector)
		}
		var err error
		if objects, err = k.objects.ByIndex(requirements[0].Field, value); err != nil {
			return nil, err
		}
	}
	selected := make([]client.Object, 0, len(objects))
	for _, item := range objects {
		object, ok := item.(client.Object)
		if ok && (options.Namespace == "" || object.GetNamespace() == options.Namespace) &&
			(options.LabelSelector == nil || options.LabelSelector.Matches(labels.Set(object.GetLabels()))) {
			selected = append(selected, object)
		}
	}
	return selected, nil
}

// out returns an object as it is handed out: a copy, unless the caller promises to change nothing, and only metadata if
// no more was asked for.
func (k *kind) out(object client.Object, partial, unsafe bool) client.Object {
	if _, ok := object.(*metav1.PartialObjectMetadata); partial && !ok {
		object = meta.AsPartialObjectMetadata(object)
	}
	if unsafe {
		return object
	}
	object, _ = object.DeepCopyObject().(client.Object)
	object.GetObjectKind().SetGroupVersionKind(k.gvk)
	return object
}
