// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
)

// Provisioner runs scheduling passes, like Karpenter core's.
type Provisioner interface {
	// Trigger requests a pass.
	Trigger(uid types.UID)
}

// RecountBuffers triggers a scheduling pass when Karpenter core's state of NodeClaims has a new provider ID, and all of them have one, so
// that nodes that hold capacity buffers don't count as empty.
//
// Upstream gap: core counts buffers by provider ID, and only in a scheduling pass. A node launched for a buffer counts as empty until the
// next pass, and again when its Machine's provider ID replaces the synthetic one. The pass that core triggers after a launch is lost if it
// runs before all NodeClaims have a provider ID. The next pass runs half a minute later; by then core may have consolidated the node
// (docs/internals/upstream/capacity-buffer-count.md).
func RecountBuffers(guest client.Reader, cluster *state.Cluster, provisioner Provisioner) Middleware {
	var counted sync.Map // provider IDs by NodeClaim
	return Around(func(ctx context.Context, request reconcile.Request, next reconcile.Reconciler) (reconcile.Result, error) {
		result, err := next.Reconcile(ctx, request)
		nodeClaim, readErr := read(ctx, guest, request)
		if err != nil || readErr != nil {
			return result, err
		}
		if nodeClaim == nil {
			counted.Delete(request.Name)
			return result, nil
		}
		id := nodeClaim.Status.ProviderID
		if before, ok := counted.Load(request.Name); id == "" || ok && before == id {
			return result, nil
		}
		buffers := &autoscalingv1beta1.CapacityBufferList{}
		if err := guest.List(ctx, buffers, client.UnsafeDisableDeepCopy); err != nil {
			return reconcile.Result{}, fmt.Errorf("listing capacity buffers: %w", err)
		}
		if len(buffers.Items) > 0 {
			if !cluster.Synced(ctx) {
				return reconcile.Result{RequeueAfter: time.Second}, nil
			}
			provisioner.Trigger(buffers.Items[0].UID)
		}
		counted.Store(request.Name, id)
		return result, nil
	})
}
