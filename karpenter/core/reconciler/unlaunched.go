// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	nodeclaimutils "sigs.k8s.io/karpenter/pkg/utils/nodeclaim"
)

// stateRetryPeriod is how often core's controller repeats itself, as in its package state/informer.
const stateRetryPeriod = time.Minute

// placeholder of the provider IDs of NodeClaims that never get one.
const placeholder = "unlaunched://"

// Settle gives Karpenter core's state a NodeClaim that is being deleted and has no provider ID with a placeholder for one: core never
// launches it, and its node is one that is being deleted. If a launch that was under way still succeeds, the provider ID replaces the
// placeholder.
//
// Upstream gap: core's state counts as unsynced while any NodeClaim has no provider ID, and then core schedules no pod and disrupts no
// node. A NodeClaim that is being deleted counts too, for as long as a finalizer keeps it
// (docs/internals/upstream/unlaunched-nodeclaim.md).
func Settle(guest client.Reader, cloudProvider karpcloudprovider.CloudProvider, cluster *state.Cluster) Middleware {
	return Around(func(ctx context.Context, request reconcile.Request, next reconcile.Reconciler) (reconcile.Result, error) {
		nodeClaim, err := read(ctx, guest, request)
		if err != nil {
			return reconcile.Result{}, err
		}
		if nodeClaim != nil && nodeClaim.DeletionTimestamp != nil && nodeClaim.Status.ProviderID == "" &&
			nodeclaimutils.IsManaged(nodeClaim, cloudProvider) {
			nodeClaim = nodeClaim.DeepCopy()
			nodeClaim.Status.ProviderID = placeholder + nodeClaim.Name
			cluster.UpdateNodeClaim(nodeClaim)
			return reconcile.Result{RequeueAfter: stateRetryPeriod}, nil
		}
		return next.Reconcile(ctx, request)
	})
}
