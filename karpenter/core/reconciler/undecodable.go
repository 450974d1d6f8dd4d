// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/lenient"
)

// IgnoreUndecodable has a controller ignore NodePools that can't be decoded whole (package undecodable). A hash of what is left of one
// would have all of its nodes replaced.
func IgnoreUndecodable(guest client.Reader) Middleware {
	return Around(func(ctx context.Context, request reconcile.Request, next reconcile.Reconciler) (reconcile.Result, error) {
		pool := &karpv1.NodePool{}
		if err := guest.Get(ctx, request.NamespacedName, pool); err == nil && lenient.Why(pool) != "" {
			return reconcile.Result{}, nil // its next change comes as a request
		}
		return next.Reconcile(ctx, request)
	})
}
