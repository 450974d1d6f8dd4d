// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/awslabs/operatorpkg/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

const (
	// paceSlots is how many launches run at once as long as they are quick. A few keep an API server busy.
	paceSlots = 4
	// paceLimit is after how long a launch lets the next one begin, so that one that hangs delays the others only that long.
	paceLimit = 250 * time.Millisecond
)

// Pace lets a few NodeClaims at a time have the pass of Karpenter core's lifecycle that launches them, in the order of their events. Those
// that are launched or being deleted wait for none.
//
// Upstream gap: core launches all NodeClaims of a burst at once, so that on few CPUs each launch takes as long as all of them
// (docs/internals/upstream/launches-at-once.md).
func Pace(guest client.Reader, now clock.WithDelayedExecution) Middleware {
	slots := make(chan struct{}, paceSlots)
	return Around(func(ctx context.Context, request reconcile.Request, next reconcile.Reconciler) (reconcile.Result, error) {
		nodeClaim, err := read(ctx, guest, request)
		if err != nil {
			return reconcile.Result{}, err
		}
		if nodeClaim != nil && nodeClaim.DeletionTimestamp == nil && !isLaunched(nodeClaim) {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return reconcile.Result{}, fmt.Errorf("waiting for other NodeClaims to be launched: %w", ctx.Err())
			}
			release := sync.OnceFunc(func() { <-slots })
			defer release()
			defer now.AfterFunc(paceLimit, release).Stop()
		}
		return next.Reconcile(ctx, request)
	})
}

// IgnoreUnlaunched has Karpenter core's controller of the conditions Drifted and Consolidatable ignore NodeClaims that aren't launched.
// Core would only write all their other conditions as unknown, and the pass that launches them would conflict with that.
func IgnoreUnlaunched(guest client.Reader) Middleware {
	return Around(func(ctx context.Context, request reconcile.Request, next reconcile.Reconciler) (reconcile.Result, error) {
		if nodeClaim, err := read(ctx, guest, request); err != nil || nodeClaim == nil || !isLaunched(nodeClaim) {
			return reconcile.Result{}, err
		}
		return next.Reconcile(ctx, request)
	})
}

// read returns nil if there is no such NodeClaim. The NodeClaim is the cache's own.
func read(ctx context.Context, guest client.Reader, request reconcile.Request) (*karpv1.NodeClaim, error) {
	nodeClaim := &karpv1.NodeClaim{}
	err := guest.Get(ctx, types.NamespacedName{Name: request.Name}, nodeClaim, client.UnsafeDisableDeepCopy)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // no NodeClaim is an answer
	case err != nil:
		return nil, fmt.Errorf("reading NodeClaim %s: %w", request.Name, err)
	}
	return nodeClaim, nil
}

// isLaunched leaves the NodeClaim, which is the cache's own, as it is.
func isLaunched(nodeClaim *karpv1.NodeClaim) bool {
	return nodeClaim.StatusConditions(status.WithObservedOnly()).IsTrue(karpv1.ConditionTypeLaunched)
}
