// SPDX-License-Identifier: Apache-2.0

package guestclient

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
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// patchNode patches a Node. Core does it with an optimistic lock, so a version that the cache has is the API server's, or the patch is
// rejected.
//
// Upstream gap: core replaces no list that another client has changed, so it locks the whole Node. While a node joins, the kubelet and
// several controllers write it at once, and each of their writes makes core's fail (docs/internals/upstream/node-lock.md).
func (r *ruled) patchNode(ctx context.Context, node *corev1.Node, patch client.Patch, opts ...client.PatchOption) error {
	cached := &corev1.Node{}
	if err := r.Get(ctx, client.ObjectKeyFromObject(node), cached, client.UnsafeDisableDeepCopy); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading Node %s: %w", node.Name, err)
	}
	r.keepZone(node, cached)
	if isRegistered(node) && slices.ContainsFunc(node.Spec.Taints, isUninitialized) && !r.AwaitsTaints(ctx, node) {
		node.Spec.Taints = slices.DeleteFunc(slices.Clone(node.Spec.Taints), isUninitialized)
	}
	narrow, err := narrowed(node, cached, patch)
	if err != nil {
		return err
	}
	if narrow != nil {
		err := r.Client.Patch(ctx, node, narrow, opts...)
		var status apierrors.APIStatus
		if !errors.As(err, &status) || status.Status().Code != http.StatusUnprocessableEntity {
			return r.written(node, err)
		}
		// Either a test has failed or the change is invalid: the patch as it is tells.
	}
	return r.written(node, r.Client.Patch(ctx, node, patch, opts...))
}

// keepZone keeps the zone of a Node where the NodeClaim has none. A Node without a zone gets the unknown one, because core consolidates no
// node without one; a cloud controller manager may replace it at any time.
//
// Upstream gap: an offering needs exactly one zone, and core copies every label of a NodeClaim to its Node when it registers it. A
// provider without zones can only make one up, which then replaces the cloud controller manager's
// (docs/internals/upstream/provider-registration.md).
func (r *ruled) keepZone(node, cached *corev1.Node) {
	if zone := cached.Labels[corev1.LabelTopologyZone]; zone != "" && node.Labels[corev1.LabelTopologyZone] == r.UnknownZone {
		node.Labels[corev1.LabelTopologyZone] = zone
	}
}

// isUninitialized selects the taint that Cluster API sets until the Node has its Machine's labels. Core sets all of them at registration,
// and this client removes the taint then: otherwise pods would wait for one more reconcile of the Machine, which Cluster API runs at most
// once a second.
//
// Upstream gap: core has no hook that changes a Node as it registers (docs/internals/upstream/provider-registration.md).
func isUninitialized(taint corev1.Taint) bool {
	return taint.MatchTaint(&clusterv1.NodeUninitializedTaint)
}

// isRegistered reports whether a Node is registered once it is written.
func isRegistered(node *corev1.Node) bool {
	return node.DeletionTimestamp == nil && node.Labels[karpv1.NodeRegisteredLabelKey] == "true" &&
		!slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&karpv1.UnregisteredNoExecuteTaint) })
}

// narrowed returns a JSON patch that tests what it changes, instead of a patch with a lock on the resource version. It returns nil for a
// patch without a lock, or if the cache has another version of the Node than it was computed from.
func narrowed(node, cached *corev1.Node, patch client.Patch) (client.Patch, error) {
	change, err := decode(node, patch)
	if err != nil {
		return nil, err
	}
	metadata, _ := change["metadata"].(map[string]any)
	if version, locked := metadata["resourceVersion"].(string); !locked || cached.ResourceVersion != version {
		return nil, nil //nolint:nilnil // the patch may stay as it is
	}
	before, err := runtime.DefaultUnstructuredConverter.ToUnstructured(cached)
	if err != nil {
		return nil, fmt.Errorf("converting Node %s: %w", node.Name, err)
	}
	delete(metadata, "resourceVersion")
	operations := append([]operation{{Op: "test", Path: "/metadata/uid", Value: cached.UID}}, guarded("", change, before)...)
	data, err := json.Marshal(operations)
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
