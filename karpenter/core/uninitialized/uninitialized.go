// SPDX-License-Identifier: Apache-2.0

// Package uninitialized removes Cluster API's taint node.cluster.x-k8s.io/uninitialized from a Node when Karpenter core registers it.
//
// The taint keeps pods away until the Node has its Machine's labels. Core sets all of them at registration. Without this package, pods
// wait for one more reconcile of the Machine, which Cluster API runs at most once a second.
//
// Upstream gap: core has no hook that changes a Node as it registers (docs/upstream/provider-registration.md).
package uninitialized

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// Guest wraps Karpenter core's guest client: the patch that registers a Node also removes the taint, unless awaits reports that Cluster
// API still has to write more than labels.
func Guest(guest client.Client, awaits func(ctx context.Context, node *corev1.Node) bool) client.Client {
	return patcher{Client: guest, awaits: awaits}
}

type patcher struct {
	client.Client
	awaits func(ctx context.Context, node *corev1.Node) bool
}

// Patch implements client.Client. Core patches a Node with an optimistic lock, so the patch doesn't undo another client's change of the
// taints.
func (p patcher) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if node, ok := object.(*corev1.Node); ok && registered(node) && slices.ContainsFunc(node.Spec.Taints, isUninitialized) && !p.awaits(ctx, node) {
		node.Spec.Taints = slices.DeleteFunc(slices.Clone(node.Spec.Taints), isUninitialized)
	}
	return p.Client.Patch(ctx, object, patch, opts...)
}

func isUninitialized(taint corev1.Taint) bool {
	return taint.MatchTaint(&clusterv1.NodeUninitializedTaint)
}

// registered reports whether a Node is registered once it is written.
func registered(node *corev1.Node) bool {
	return node.DeletionTimestamp == nil && node.Labels[karpv1.NodeRegisteredLabelKey] == "true" &&
		!slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&karpv1.UnregisteredNoExecuteTaint) })
}
