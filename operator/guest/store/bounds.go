// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"fmt"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Bounds limit a Store's objects of all kinds together. Its zero value is the default, which is twice the need of a guest with 5,000 nodes.
type Bounds struct {
	Objects, Bytes int
}

const (
	defaultObjects = 60_000
	defaultBytes   = 128 << 20
	// maxText is the largest object that is read, in bytes. API servers accept objects of 3 MiB.
	maxText = 6 << 20
	// overhead of an object in the store.
	overhead = 256
)

func (b Bounds) orDefault() Bounds {
	return Bounds{Objects: cmp.Or(b.Objects, defaultObjects), Bytes: cmp.Or(b.Bytes, defaultBytes)}
}

// account counts a guest's kept objects and their bytes, and those of incomplete lists.
type account struct {
	bounds Bounds

	mu        sync.Mutex
	retained  Bounds
	collected Bounds
	lists     map[*kind]Bounds
}

func sizeOf(object any) int { return Size(object) + overhead }

// retain accounts for changes of the kept objects. It returns an error, and accounts for nothing, beyond the bounds.
func (a *account) retain(objects, bytes int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	after := Bounds{a.retained.Objects + objects, a.retained.Bytes + bytes}
	if objects > 0 || bytes > 0 {
		if err := a.bounds.check(after); err != nil {
			return err
		}
	}
	a.retained = after
	return nil
}

// collect accounts for an object of a kind's list. Lists have the same bounds, beside the kept objects: a later list replaces
// an earlier one.
func (a *account) collect(k *kind, bytes int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lists == nil {
		a.lists = map[*kind]Bounds{}
	}
	list := a.lists[k]
	a.lists[k] = Bounds{list.Objects + 1, list.Bytes + bytes}
	a.collected = Bounds{a.collected.Objects + 1, a.collected.Bytes + bytes}
	return a.bounds.check(a.collected)
}

// release ends a kind's list.
func (a *account) release(k *kind) {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := a.lists[k]
	delete(a.lists, k)
	a.collected = Bounds{a.collected.Objects - list.Objects, a.collected.Bytes - list.Bytes}
}

func (b Bounds) check(used Bounds) error {
	switch {
	case used.Objects > b.Objects:
		return fmt.Errorf("it has more than %d objects of the kinds that the operator reads", b.Objects)
	case used.Bytes > b.Bytes:
		return fmt.Errorf("its objects of the kinds that the operator reads take more than %d MiB", b.Bytes>>20)
	}
	return nil
}

// maxUnreadable limits how many objects are remembered that can't be read whole.
const maxUnreadable = 100

// unreadable are a guest's objects that can't be read whole.
type unreadable struct {
	noticed func()
	count   atomic.Int64

	mu      sync.Mutex
	objects map[unreadableKey]string
}

type unreadableKey struct {
	gvk  schema.GroupVersionKind
	name client.ObjectKey
}

// set records an object's problem; empty for none.
func (u *unreadable) set(gvk schema.GroupVersionKind, name client.ObjectKey, problem string) {
	if problem == "" && u.count.Load() == 0 {
		return // nearly always
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	key := unreadableKey{gvk, name}
	before, known := u.objects[key]
	switch {
	case problem == before, !known && len(u.objects) >= maxUnreadable:
		return
	case problem == "":
		delete(u.objects, key)
	default:
		if u.objects == nil {
			u.objects = map[unreadableKey]string{}
		}
		u.objects[key] = problem
	}
	u.changed()
}

// begin forgets a kind's objects, because a list begins.
func (u *unreadable) begin(gvk schema.GroupVersionKind) {
	if u.count.Load() == 0 {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for key := range u.objects {
		if key.gvk == gvk {
			delete(u.objects, key)
		}
	}
	u.changed()
}

func (u *unreadable) changed() {
	u.count.Store(int64(len(u.objects)))
	if u.noticed != nil {
		u.noticed()
	}
}

// first returns the problem of the first object by name.
func (u *unreadable) first() (count int, example string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for key, problem := range u.objects {
		if text := fmt.Sprintf("%s %s: %s", key.gvk.Kind, key.name.Name, problem); example == "" || text < example {
			example = text
		}
	}
	return len(u.objects), example
}
