// SPDX-License-Identifier: Apache-2.0

// Package lru gives k8s.io/utils/lru types.
package lru

import "k8s.io/utils/lru"

// Cache holds the most recently used values. It may be used concurrently.
type Cache[K comparable, V any] struct{ cache *lru.Cache }

// New returns a Cache of at most size values.
func New[K comparable, V any](size int) Cache[K, V] { return Cache[K, V]{lru.New(size)} }

// Get returns a value, and whether there is one.
func (c Cache[K, V]) Get(key K) (value V, ok bool) {
	found, ok := c.cache.Get(key)
	value, _ = found.(V) // a nil interface has no type
	return value, ok
}

// Add stores a value.
func (c Cache[K, V]) Add(key K, value V) { c.cache.Add(key, value) }

// Remove removes a value, if there is one.
func (c Cache[K, V]) Remove(key K) { c.cache.Remove(key) }
