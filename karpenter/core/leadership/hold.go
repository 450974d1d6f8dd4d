// SPDX-License-Identifier: Apache-2.0

package leadership

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/awslabs/operatorpkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/karpenter/core/reconciler"
)

// batches are controllers whose reconciliations Hold doesn't start while suspended: Karpenter core's that log ErrSuspended
// for each NodePool or NodeClaim instead of returning it, and the collection of what is left in the management cluster,
// which could only fail there.
var batches = []string{"provisioner", "disruption", "machine.garbagecollection"}

// Hold wraps a controller: a reconciliation that ends with ErrSuspended counts as done, and the controller reconciles its
// object again once, when the suspension ends. Without it, controller-runtime logs and retries each of them with back-off,
// and Karpenter core's controllers start them again with every event of a pod.
func Hold(held controller.Controller, keeper *Keeper) controller.Controller {
	return reconciler.Wrap(held, func(of reconciler.Registered) (reconcile.Reconciler, error) {
		enqueue, err := of.Enqueue()
		if err != nil {
			return nil, err
		}
		h := &hold{
			keeper: keeper, inner: of.Inner, batch: slices.Contains(batches, of.Name), enqueue: enqueue,
			requests: map[reconcile.Request]struct{}{},
		}
		keeper.onAnswer(h.resume)
		return h, nil
	})
}

// hold is a reconciler that keeps what it can't do while suspended.
type hold struct {
	keeper *Keeper
	inner  reconcile.Reconciler
	// batch: see batches.
	batch   bool
	enqueue func(reconcile.Request)

	mu       sync.Mutex
	requests map[reconcile.Request]struct{}
}

// Reconcile implements reconcile.Reconciler.
func (h *hold) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	if h.keeper.Suspended() && (h.batch || h.holds(request)) {
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
