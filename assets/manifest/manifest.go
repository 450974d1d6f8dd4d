// SPDX-License-Identifier: Apache-2.0

// Package manifest decodes embedded manifests.
package manifest

import (
	"fmt"
	"reflect"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// decoded caches decoded manifests: every reconciliation of every cluster reads them, and to parse YAML takes a hundred times
// as long as to copy the object. There are only as many as are embedded.
var decoded = struct {
	sync.RWMutex
	byType map[reflect.Type]map[string]client.Object
}{byType: map[reflect.Type]map[string]client.Object{}}

// Decode reads an object of into's type from embedded YAML and returns a copy, which the caller may change. It rejects fields that the type
// doesn't have: a typo in an asset is found by the first test that renders it.
func Decode[T client.Object](data []byte, into T) (T, error) {
	kind := reflect.TypeFor[T]()
	decoded.RLock()
	known, ok := decoded.byType[kind][string(data)]
	decoded.RUnlock()
	if !ok {
		if err := yaml.UnmarshalStrict(data, into); err != nil {
			return into, fmt.Errorf("decoding %T: %w", into, err)
		}
		known = into
		decoded.Lock()
		if decoded.byType[kind] == nil {
			decoded.byType[kind] = map[string]client.Object{}
		}
		decoded.byType[kind][string(data)] = known
		decoded.Unlock()
	}
	return known.DeepCopyObject().(T), nil
}
