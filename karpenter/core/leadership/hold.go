// SPDX-License-Identifier: Apache-2.0

package leadership

import (
	"context"
	"errors"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/karpenter/core/reconciler"
)

// Refuse begins no pass while suspended. It is for Karpenter core's controllers that log ErrSuspended for each NodePool or NodeClaim
// instead of returning it, and for the collection of garbage in the management cluster, which could only fail there.
func Refuse(keeper *Keeper) reconciler.Middleware {
	return reconciler.Around(func(ctx context.Context, request reconcile.Request, next reconcile.Reconciler) (reconcile.Result, error) {
		if err := keeper.Err(); err != nil {
			return reconcile.Result{}, err
		}
		return next.Reconcile(ctx, request)
	})
}

// Hold counts a reconciliation that ends with ErrSuspended as done, and has the controller reconcile its object again once, when the
// suspension ends. Without it, controller-runtime logs and retries each of them with back-off, and Karpenter core's controllers start them
// again with every event of a pod.
func Hold(keeper *Keeper) reconciler.Middleware {
	return func(r reconciler.Registered) reconcile.Reconciler {
		var waiting sync.Map // requests that couldn't be reconciled
		keeper.onAnswer(func() {
			waiting.Range(func(request, _ any) bool {
				waiting.Delete(request)
				r.Enqueue(request.(reconcile.Request))
				return true
			})
		})
		return reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
			if _, waits := waiting.Load(request); waits && keeper.Suspended() {
				return reconcile.Result{}, nil
			}
			waiting.Delete(request)
			result, err := r.Inner.Reconcile(ctx, request)
			if errors.Is(err, ErrSuspended) {
				waiting.Store(request, nil)
				return reconcile.Result{}, nil
			}
			return result, err
		})
	}
}
