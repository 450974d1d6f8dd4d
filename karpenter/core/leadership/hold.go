// SPDX-License-Identifier: Apache-2.0

package leadership

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/awslabs/operatorpkg/controller"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

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
		h := &hold{keeper: keeper, inner: of.Inner, batch: slices.Contains(batches, of.Name), requests: map[reconcile.Request]struct{}{}}
		keeper.onAnswer(h.resume)
		return h, of.Watch(source.Func(h.start))
	})
}

// hold is a reconciler that keeps what it can't do while suspended.
type hold struct {
	keeper *Keeper
	inner  reconcile.Reconciler
	// batch: see batches.
	batch bool

	mu       sync.Mutex
	requests map[reconcile.Request]struct{}
	queue    workqueue.TypedRateLimitingInterface[reconcile.Request]
}

// start implements source.Source.
func (h *hold) start(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.queue = queue
	return nil
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
	if h.queue == nil {
		return
	}
	for request := range h.requests {
		h.queue.Add(request)
	}
	clear(h.requests)
}
