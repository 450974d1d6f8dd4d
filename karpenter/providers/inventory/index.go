// SPDX-License-Identifier: Apache-2.0

package inventory

// provided is an object with a provider ID, empty while it is unknown.
type provided interface {
	comparable
	providerID() string
}

// index holds objects by key, and the key of the last object of each provider ID.
type index[K comparable, V provided] struct {
	objects map[K]V
	keys    map[string]K
}

func newIndex[K comparable, V provided]() index[K, V] {
	return index[K, V]{objects: map[K]V{}, keys: map[string]K{}}
}

// set records an object. It returns the previous one, the zero value if there was none, and whether they differ.
func (x index[K, V]) set(key K, object V) (before V, changed bool) {
	before, ok := x.objects[key]
	if ok && before == object {
		return before, false
	}
	x.release(key, before)
	x.objects[key] = object
	if id := object.providerID(); id != "" {
		x.keys[id] = key
	}
	return before, true
}

// remove drops an object and returns it, or false if there is none.
func (x index[K, V]) remove(key K) (before V, ok bool) {
	if before, ok = x.objects[key]; ok {
		delete(x.objects, key)
		x.release(key, before)
	}
	return before, ok
}

// release drops an object's provider ID, unless a later object has it.
func (x index[K, V]) release(key K, object V) {
	if id := object.providerID(); x.keys[id] == key {
		delete(x.keys, id)
	}
}
