// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/internal/controllerqueue"
	"github.com/autonode-io/autonode/internal/fairness"
)

// Workers is how many HostedClusters are reconciled at a time, if Config doesn't say it. They mostly wait for answers.
const Workers = 50

// limiter limits how many workers the HostedClusters of one namespace take, whose author chooses the guests and the
// registries, and how many those with slow guests take. A request above a limit takes no worker, and is enqueued when
// another one completes. It is the queue's rate limiter, too.
type limiter struct {
	workqueue.TypedRateLimiter[reconcile.Request]
	queue controllerqueue.Queue[reconcile.Request]

	mu       sync.Mutex
	requests fairness.Limiter[reconcile.Request]
	// refused are the requests that were above a limit, until the controller has forgotten them.
	refused sets.Set[reconcile.Request]
}

// newLimiter returns a limiter. isSlow reports whether a HostedCluster's guest is slow.
func newLimiter(workers int, isSlow func(types.NamespacedName) bool) *limiter {
	perNamespace, slow, slowPerNamespace := max(workers*4/5, 1), max(workers*2/5, 1), max(workers/5, 1)
	return &limiter{
		TypedRateLimiter: workqueue.DefaultTypedControllerRateLimiter[reconcile.Request](),
		refused:          sets.New[reconcile.Request](),
		requests: fairness.Limiter[reconcile.Request]{Classes: func(request reconcile.Request) []fairness.Class {
			classes := []fairness.Class{{Kind: "namespace", Name: request.Namespace, Limit: perNamespace}}
			if isSlow(request.NamespacedName) {
				classes = append(classes,
					fairness.Class{Kind: "slow", Limit: slow}, fairness.Class{Kind: "slow", Name: request.Namespace, Limit: slowPerNamespace})
			}
			return classes
		}},
	}
}

// wrap returns a reconciler that keeps the limits.
func (l *limiter) wrap(inner reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		release, ok := l.acquire(request)
		if !ok {
			return reconcile.Result{}, nil
		}
		defer release()
		return inner.Reconcile(ctx, request)
	})
}

// acquire starts a reconciliation. It returns false above a limit, and enqueues the request later.
func (l *limiter) acquire(request reconcile.Request) (release func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	admitted, ok := l.requests.Acquire(request)
	if !ok {
		l.refused.Insert(request)
		return nil, false
	}
	return func() { l.release(admitted) }, true
}

func (l *limiter) release(admitted []fairness.Class) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests.Release(admitted)
	// An enqueued one counts as running until all are, so that no more are enqueued than may run.
	for request, enqueued, ok := l.requests.Next(); ok; request, enqueued, ok = l.requests.Next() {
		defer l.requests.Release(enqueued)
		l.queue.Add(request)
	}
}

// Forget implements workqueue.TypedRateLimiter. The controller calls it after each reconciliation without an error, which a request above
// a limit looks like: the back-off of its last error has to stay.
func (l *limiter) Forget(request reconcile.Request) {
	l.mu.Lock()
	refused := l.refused.Has(request)
	l.refused.Delete(request)
	l.mu.Unlock()
	if !refused {
		l.TypedRateLimiter.Forget(request)
	}
}
