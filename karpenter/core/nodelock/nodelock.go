// SPDX-License-Identifier: Apache-2.0

// Package nodelock lets Karpenter core's patches of a Node conflict only with writes of what they change.
//
// Upstream gap: core patches Nodes with a lock on the resource version, so that it replaces no list that another client has changed. While a
// node joins, the kubelet and several controllers write it at once, and each of their writes makes core's fail (docs/upstream/node-lock.md).
package nodelock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Guest wraps Karpenter core's guest client, which reads Nodes from a cache: a patch of a Node with a lock on its resource version becomes a
// JSON patch that tests what it changes. Where such a test fails, the patch is sent as it is, and fails with a conflict.
func Guest(guest client.Client) client.Client { return patcher{guest} }

type patcher struct{ client.Client }

// Patch implements client.Client.
func (p patcher) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
	narrow, err := p.narrow(ctx, object, patch)
	if err != nil {
		return err
	}
	if narrow != nil {
		err := p.Client.Patch(ctx, object, narrow, opts...)
		var status apierrors.APIStatus
		if !errors.As(err, &status) || status.Status().Code != http.StatusUnprocessableEntity {
			return err
		}
		// Either a test has failed or the change is invalid: the patch as it is tells.
	}
	return p.Client.Patch(ctx, object, patch, opts...)
}

// narrow returns nil if the patch is none of a Node with a lock, or if the cache has another version of the Node than it was computed from.
func (p patcher) narrow(ctx context.Context, object client.Object, patch client.Patch) (client.Patch, error) {
	node, ok := object.(*corev1.Node)
	if !ok || patch.Type() != types.MergePatchType {
		return nil, nil //nolint:nilnil // the patch may stay as it is
	}
	data, err := patch.Data(node)
	if err != nil {
		return nil, fmt.Errorf("computing a patch of Node %s: %w", node.Name, err)
	}
	var change map[string]any
	if err := json.Unmarshal(data, &change); err != nil {
		return nil, fmt.Errorf("reading a patch of Node %s: %w", node.Name, err)
	}
	metadata, _ := change["metadata"].(map[string]any)
	version, locked := metadata["resourceVersion"].(string)
	if !locked {
		return nil, nil //nolint:nilnil // the patch may stay as it is
	}
	cached := &corev1.Node{}
	if err := p.Get(ctx, client.ObjectKeyFromObject(node), cached, client.UnsafeDisableDeepCopy); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading Node %s: %w", node.Name, err)
	}
	if cached.ResourceVersion != version {
		return nil, nil //nolint:nilnil // the patch may stay as it is
	}
	before, err := runtime.DefaultUnstructuredConverter.ToUnstructured(cached)
	if err != nil {
		return nil, fmt.Errorf("converting Node %s: %w", node.Name, err)
	}
	delete(metadata, "resourceVersion")
	operations := append([]operation{{Op: "test", Path: "/metadata/uid", Value: cached.UID}}, guarded("", change, before)...)
	data, err = json.Marshal(operations)
	if err != nil {
		return nil, fmt.Errorf("writing a patch of Node %s: %w", node.Name, err)
	}
	return client.RawPatch(types.JSONPatchType, data), nil
}

// operation is one of RFC 6902.
type operation struct {
	Op   string `json:"op"`
	Path string `json:"path"`
	// Value of test is null where there should be none.
	Value any `json:"value"`
}

var pointer = strings.NewReplacer("~", "~0", "/", "~1")

// guarded returns a merge patch's changes, each after a test that what it changes is what it was.
func guarded(parent string, change, before map[string]any) []operation {
	var operations []operation
	for _, key := range slices.Sorted(maps.Keys(change)) {
		path, value, was := parent+"/"+pointer.Replace(key), change[key], before[key]
		within, isObject := value.(map[string]any)
		if wasObject, ok := was.(map[string]any); ok && isObject {
			operations = append(operations, guarded(path, within, wasObject)...)
			continue
		}
		operations = append(operations, operation{Op: "test", Path: path, Value: was})
		switch {
		case value != nil:
			operations = append(operations, operation{Op: "add", Path: path, Value: value})
		case was != nil:
			operations = append(operations, operation{Op: "remove", Path: path})
		}
	}
	return operations
}
