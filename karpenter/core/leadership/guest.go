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

// Guest returns Karpenter core's client of the guest, except that it deletes no NodeClaim while suspended. Not everything that core does
// begins with a question to the cloud provider: a NodeClaim expires by the clock alone, and an unhealthy node is found in the guest alone. Their
// nodes would be drained, and nothing could take the pods. Whoever asks for the deletion of a NodeClaim or a Node does that by
// another client, and gets it.
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

// Patch implements client.Client. A time by which a node has to be gone is part of its deletion: Karpenter sets it just before when the node is
// unhealthy, and left behind it would make every later drain a forced one.
func (g guarded) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
	nodeClaim, ok := object.(*karpv1.NodeClaim)
	if ok && nodeClaim.DeletionTimestamp == nil && g.suspended() {
		data, err := patch.Data(object)
		if err != nil {
			return fmt.Errorf("patching NodeClaim %s: %w", nodeClaim.Name, err)
		}
		if bytes.Contains(data, []byte(karpv1.NodeClaimTerminationTimestampAnnotationKey)) {
			return fmt.Errorf("setting a deadline to NodeClaim %s: %w", nodeClaim.Name, ErrSuspended)
		}
	}
	return g.Client.Patch(ctx, object, patch, opts...)
}

// asked tells whether somebody has deleted the NodeClaim's Node, which takes the NodeClaim with it.
func (g guarded) asked(ctx context.Context, nodeClaim *karpv1.NodeClaim) bool {
	if nodeClaim.Status.NodeName == "" {
		return false
	}
	node := &corev1.Node{}
	err := g.Get(ctx, types.NamespacedName{Name: nodeClaim.Status.NodeName}, node)
	return err == nil && node.DeletionTimestamp != nil && node.Spec.ProviderID == nodeClaim.Status.ProviderID
}
