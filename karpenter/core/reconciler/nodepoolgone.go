// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// IgnoreNodePoolGone ends a pass of Karpenter core's state of NodeClaims without an error if the NodePool isn't found. By then the state
// has the NodeClaim; only its cost, which is the NodePool's, doesn't count.
//
// Upstream gap: the pass fails and is retried until the NodeClaim has gone: ten errors in five seconds
// (docs/internals/upstream/nodepool-gone.md).
func IgnoreNodePoolGone() Middleware {
	return Around(func(ctx context.Context, request reconcile.Request, next reconcile.Reconciler) (reconcile.Result, error) {
		result, err := next.Reconcile(ctx, request)
		if apierrors.IsNotFound(err) {
			return reconcile.Result{RequeueAfter: stateRetryPeriod}, nil
		}
		return result, err
	})
}
