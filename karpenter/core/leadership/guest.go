// SPDX-License-Identifier: Apache-2.0

package leadership

import (
	"bytes"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// Guest wraps Karpenter core's guest client: it deletes no NodeClaim while suspended. Karpenter core expires
// NodeClaims by the clock and repairs unhealthy nodes without asking the cloud provider. It would drain their nodes
// while no replacement can be launched. A user who deletes a NodeClaim or a Node uses another client, so that
// deletion goes ahead.
func Guest(guest client.Client, suspended func() bool) client.Client {
	return guarded{Client: guest, suspended: suspended}
}

type guarded struct {
	client.Client
	suspended func() bool
}

// Delete implements client.Client.
func (g guarded) Delete(ctx context.Context, object client.Object, opts ...client.DeleteOption) error {
	nodeClaim, ok := object.(*karpv1.NodeClaim)
	if ok && g.suspended() && !g.asked(ctx, nodeClaim) {
		return fmt.Errorf("deleting NodeClaim %s: %w", nodeClaim.Name, ErrSuspended)
	}
	return g.Client.Delete(ctx, object, opts...)
}

// Patch implements client.Client. While suspended it rejects a termination timestamp on a NodeClaim. Karpenter sets
// it just before it deletes the NodeClaim of an unhealthy node; left on a NodeClaim that isn't deleted, it would make
// every later drain a forced one.
func (g guarded) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
	nodeClaim, ok := object.(*karpv1.NodeClaim)
	if ok && nodeClaim.DeletionTimestamp == nil && g.suspended() {
		data, err := patch.Data(object)
		if err != nil {
			return fmt.Errorf("patching NodeClaim %s: %w", nodeClaim.Name, err)
		}
		if bytes.Contains(data, []byte(karpv1.NodeClaimTerminationTimestampAnnotationKey)) {
			return fmt.Errorf("setting the termination timestamp of NodeClaim %s: %w", nodeClaim.Name, ErrSuspended)
		}
	}
	return g.Client.Patch(ctx, object, patch, opts...)
}

// asked reports whether a user has deleted the NodeClaim's Node, which deletes the NodeClaim too.
func (g guarded) asked(ctx context.Context, nodeClaim *karpv1.NodeClaim) bool {
	if nodeClaim.Status.NodeName == "" {
		return false
	}
	node := &corev1.Node{}
	err := g.Get(ctx, types.NamespacedName{Name: nodeClaim.Status.NodeName}, node)
	return err == nil && node.DeletionTimestamp != nil && node.Spec.ProviderID == nodeClaim.Status.ProviderID
}
