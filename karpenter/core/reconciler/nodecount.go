// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
)

// settle is after how long core's controllers have finished what they had in hand when a NodeClaim went. They need milliseconds.
const settle = 10 * time.Second

// counted is a NodeClaim that Karpenter core's state has counted.
type counted struct {
	nodePool string
	// gone is when the NodeClaim was first missing.
	gone time.Time
}

// Recount makes Karpenter core's state of NodeClaims forget a NodeClaim a second time, some seconds after it was deleted.
//
// Upstream gap: core's deprovisioning of static NodePools deletes a NodeClaim and then counts it as being deleted. A NodeClaim without a
// finalizer is gone at once, and so may be forgotten before it is counted. It then takes a place of the NodePool's limit until Karpenter
// restarts: with none left, drifted nodes aren't replaced (docs/internals/upstream/static-node-count.md).
func Recount(guest client.Reader, nodes *state.NodePoolState, now clock.PassiveClock) Middleware {
	var mu sync.Mutex
	known := map[string]counted{}
	return Around(func(ctx context.Context, request reconcile.Request, next reconcile.Reconciler) (reconcile.Result, error) {
		result, err := next.Reconcile(ctx, request)
		nodeClaim, readErr := read(ctx, guest, request)
		if err != nil || readErr != nil {
			return result, err
		}
		mu.Lock()
		defer mu.Unlock()
		if nodeClaim != nil {
			known[request.Name] = counted{nodePool: nodeClaim.Labels[karpv1.NodePoolLabelKey]}
			return result, nil
		}
		c, ok := known[request.Name]
		if !ok {
			return result, nil
		}
		if c.gone.IsZero() {
			c.gone = now.Now()
			known[request.Name] = c
		}
		if wait := settle - now.Since(c.gone); wait > 0 {
			return reconcile.Result{RequeueAfter: wait}, nil
		}
		delete(known, request.Name)
		if _, deleting, _ := nodes.GetNodeCount(c.nodePool); deleting > 0 {
			nodes.SetNodeClaimMapping(c.nodePool, request.Name) // Cleanup finds the NodePool by the NodeClaim, which it has forgotten
			nodes.Cleanup(request.Name)
		}
		return result, nil
	})
}
