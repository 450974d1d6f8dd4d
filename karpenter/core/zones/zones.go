// SPDX-License-Identifier: Apache-2.0

// Package zones keeps Karpenter core from writing a zone over the one that a Node has.
//
// Upstream gap: an offering needs exactly one zone, and core copies every label of a NodeClaim to its Node when it registers it.
// A provider without zones can only make one up, which then replaces what a cloud controller manager has found out
// (docs/upstream/provider-registration.md).
package zones

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Guest wraps Karpenter core's guest client: it doesn't write the zone unknown on a Node that has another one. A Node without a
// zone gets unknown, because core consolidates no node without one; a cloud controller manager may replace it at any time.
func Guest(guest client.Client, unknown string) client.Client {
	return patcher{Client: guest, unknown: unknown}
}

type patcher struct {
	client.Client
	unknown string
}

// Patch implements client.Client. Core patches a Node with an optimistic lock, so what the cache has is what the API server has, or
// the patch is rejected.
func (p patcher) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if node, ok := object.(*corev1.Node); ok && node.Labels[corev1.LabelTopologyZone] == p.unknown {
		current := &corev1.Node{}
		if err := p.Get(ctx, types.NamespacedName{Name: node.Name}, current); err != nil {
			return err
		}
		if own := current.Labels[corev1.LabelTopologyZone]; own != "" {
			node.Labels[corev1.LabelTopologyZone] = own
		}
	}
	return p.Client.Patch(ctx, object, patch, opts...)
}
