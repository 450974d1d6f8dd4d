// SPDX-License-Identifier: Apache-2.0

// Package departure wakes Karpenter core when an instance that it waits for is gone.
//
// Upstream gap: core asks its cloud provider every five seconds whether an instance is gone, and a provider that is told at once has no way to
// pass that on but a write of the object that core watches (docs/upstream/departed-machines.md).
package departure

import (
	"context"
	"fmt"
	"sync"

	"github.com/awslabs/operatorpkg/controller"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/autonode-io/autonode/karpenter/core/reconciler"
)

// Follow wraps a controller of Karpenter core's that waits for instances to go. wake begins a pass over the object of that name, which has no
// namespace, at once. A controller that isn't started begins with all objects anyway.
func Follow(core controller.Controller) (followed controller.Controller, wake func(name string)) {
	w := &waiter{}
	return reconciler.Wrap(core, func(of reconciler.Registered) (reconcile.Reconciler, error) {
		if err := of.Watch(source.Func(w.start)); err != nil {
			return nil, fmt.Errorf("following departures: %w", err)
		}
		return of.Inner, nil
	}), w.wake
}

type waiter struct {
	mu sync.Mutex
	// queue is nil until the controller is started.
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
}

func (w *waiter) start(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = queue
	return nil
}

func (w *waiter) wake(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.queue != nil {
		w.queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
	}
}
