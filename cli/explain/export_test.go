// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// SnapshotOf returns a snapshot of these objects.
func SnapshotOf(objects ...client.Object) (*Snapshot, error) {
	s := &Snapshot{objects: map[schema.GroupVersionKind][]client.Object{}, Unread: map[string]error{}}
	for _, kind := range kinds {
		gvk, err := kindOf(kind.list)
		if err != nil {
			return nil, err
		}
		s.objects[gvk] = nil
	}
	for _, object := range objects {
		gvk, err := kindOf(object)
		if err != nil {
			return nil, err
		}
		s.objects[gvk] = append(s.objects[gvk], object)
	}
	return s, nil
}
