// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// kind holds the objects of one watch. The reflector writes it.
type kind struct {
	gvk        schema.GroupVersionKind
	namespaced bool
	transform  toolscache.TransformFunc
	objects    toolscache.Indexer
	listed     chan struct{} // closed after the first list
	usage      *account
	exceeded   func(error)

	mu       sync.Mutex // held while handlers are called, so that each sees the changes in their order
	handlers []toolscache.ResourceEventHandler
}

var _ toolscache.TransformingStore = (*kind)(nil)

func newKind(gvk schema.GroupVersionKind, namespaced bool, transform toolscache.TransformFunc) *kind {
	return &kind{
		gvk: gvk, namespaced: namespaced, transform: transform, listed: make(chan struct{}),
		usage: &account{bounds: Bounds{}.orDefault()}, exceeded: func(error) {},
		objects: toolscache.NewIndexer(toolscache.DeletionHandlingMetaNamespaceKeyFunc, toolscache.Indexers{}),
	}
}

// handle adds a handler and calls it for the objects there are.
func (k *kind) handle(handler toolscache.ResourceEventHandler) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.handlers = append(k.handlers, handler)
	for _, object := range k.objects.List() {
		handler.OnAdd(object, true)
	}
}

func (k *kind) index(field string, extract client.IndexerFunc) error {
	if _, known := k.objects.GetIndexers()[field]; known {
		return nil
	}
	return k.objects.AddIndexers(toolscache.Indexers{field: func(object any) ([]string, error) {
		o, ok := object.(client.Object)
		if !ok {
			return nil, fmt.Errorf("%T isn't an object", object)
		}
		return extract(o), nil
	}})
}

// Transformer implements toolscache.TransformingStore: the reflector collects the first list elsewhere.
func (k *kind) Transformer() toolscache.TransformFunc { return k.collect }

// collect shrinks an object of a list, which counts until the list is complete or begins again.
func (k *kind) collect(object any) (any, error) {
	object, err := k.shrink(object)
	if err == nil {
		if err = k.usage.collect(k, sizeOf(object)); err != nil {
			k.exceeded(err)
		}
	}
	return object, err
}

func (k *kind) shrink(object any) (any, error) {
	if partial, ok := object.(*metav1.PartialObjectMetadata); ok {
		partial.SetGroupVersionKind(k.gvk) // the API server reports PartialObjectMetadata
	}
	if k.transform == nil {
		return object, nil
	}
	return k.transform(object)
}

// Add implements toolscache.ReflectorStore.
func (k *kind) Add(object any) error { return k.Update(object) }

// Update implements toolscache.ReflectorStore.
func (k *kind) Update(object any) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.put(object, false)
}

func (k *kind) put(object any, inFirstList bool) error {
	object, err := k.shrink(object)
	if err != nil {
		return err
	}
	before, known, err := k.objects.Get(object)
	if err != nil {
		return err
	}
	objects, bytes := 1, sizeOf(object)
	if known {
		objects, bytes = 0, bytes-sizeOf(before)
	}
	if err := k.usage.retain(objects, bytes); err != nil {
		k.exceeded(err)
		return err
	}
	if err := k.objects.Update(object); err != nil {
		return err
	}
	for _, handler := range k.handlers {
		if known {
			handler.OnUpdate(before, object)
		} else {
			handler.OnAdd(object, inFirstList)
		}
	}
	return nil
}

// Delete implements toolscache.ReflectorStore.
func (k *kind) Delete(object any) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.remove(object)
}

func (k *kind) remove(object any) error {
	before, known, err := k.objects.Get(object)
	if err != nil || !known {
		return err
	}
	if err := k.objects.Delete(before); err != nil {
		return err
	}
	_ = k.usage.retain(-1, -sizeOf(before)) // which is within every bound
	for _, handler := range k.handlers {
		handler.OnDelete(before)
	}
	return nil
}

// Replace implements toolscache.ReflectorStore.
func (k *kind) Replace(objects []any, _ string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.usage.release(k)
	gone := sets.New(k.objects.ListKeys()...)
	first := !k.isListed()
	for _, object := range objects {
		key, err := toolscache.MetaNamespaceKeyFunc(object)
		if err != nil {
			return err
		}
		gone.Delete(key)
		if err := k.put(object, first); err != nil {
			return err
		}
	}
	for _, key := range slices.Collect(maps.Keys(gone)) {
		if err := k.remove(toolscache.DeletedFinalStateUnknown{Key: key}); err != nil {
			return err
		}
	}
	if first {
		close(k.listed)
	}
	return nil
}

func (k *kind) isListed() bool {
	select {
	case <-k.listed:
		return true
	default:
		return false
	}
}

// Resync implements toolscache.ReflectorStore.
func (k *kind) Resync() error { return nil }
