// SPDX-License-Identifier: Apache-2.0

package leadership

import (
	"context"
	"errors"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/karpenter/core/reconciler"
)

// Refuse begins no pass while suspended. It is for Karpenter core's controllers that log ErrSuspended for each NodePool or NodeClaim instead of
// returning it, and for the collection of garbage in the management cluster, which could only fail there.
func Refuse(keeper *Keeper) reconciler.Middleware {
	return reconciler.Around(func(ctx context.Context, request reconcile.Request, next reconcile.Reconciler) (reconcile.Result, error) {
		if err := keeper.Err(); err != nil {
			return reconcile.Result{}, err
		}
		return next.Reconcile(ctx, request)
	})
}

// Hold counts a reconciliation that ends with ErrSuspended as done, and has the controller reconcile its object again once, when the suspension
// ends. Without it, controller-runtime logs and retries each of them with back-off, and Karpenter core's controllers start them again with every
// event of a pod.
func Hold(keeper *Keeper) reconciler.Middleware {
	return func(r reconciler.Registered) reconcile.Reconciler {
		h := &hold{keeper: keeper, inner: r.Inner, enqueue: r.Enqueue, requests: map[reconcile.Request]struct{}{}}
		keeper.onAnswer(h.resume)
		return h
	}
}

// hold is a reconciler that keeps what it can't do while suspended.
type hold struct {
	keeper  *Keeper
	inner   reconcile.Reconciler
	enqueue func(reconcile.Request) bool

	mu       sync.Mutex
	requests map[reconcile.Request]struct{}
}

// Reconcile implements reconcile.Reconciler.
func (h *hold) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	if h.keeper.Suspended() && h.holds(request) {
		h.keep(request)
		return reconcile.Result{}, nil
	}
	h.forget(request)
	result, err := h.inner.Reconcile(ctx, request)
	if errors.Is(err, ErrSuspended) {
		h.keep(request)
		return reconcile.Result{}, nil
	}
	return result, err
}

func (h *hold) holds(request reconcile.Request) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, held := h.requests[request]
	return held
}

func (h *hold) keep(request reconcile.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requests[request] = struct{}{}
}

func (h *hold) forget(request reconcile.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.requests, request)
}

// resume queues all that was kept.
func (h *hold) resume() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for request := range h.requests {
		h.enqueue(request)
	}
	clear(h.requests)
}
