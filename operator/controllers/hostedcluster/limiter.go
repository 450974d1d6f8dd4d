// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"context"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Workers is how many HostedClusters are reconciled at a time, if Config doesn't say it. They mostly wait for answers.
const Workers = 50

// limiter limits how many workers the HostedClusters of one namespace take, whose author chooses the guests and the
// registries, and how many those with slow guests take. A request above a limit takes no worker, and is enqueued when
// another one completes.
type limiter struct {
	limits
	// isSlow reports whether a HostedCluster's guest is slow.
	isSlow func(hostedCluster types.NamespacedName) bool

	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[reconcile.Request] // nil until the controller starts
	counts
	waiting []reconcile.Request // in order of arrival
}

// limits of workers: for one namespace, for slow guests, and for those of one namespace.
type limits struct{ ofNamespace, ofSlow, ofNamespaceSlow int }

func limitsOf(workers int) limits {
	return limits{ofNamespace: max(workers*4/5, 1), ofSlow: max(workers*2/5, 1), ofNamespaceSlow: max(workers/5, 1)}
}

// counts of the reconciliations in progress.
type counts struct {
	ofNamespace, ofNamespaceSlow map[string]int
	ofSlow                       int
}

// add counts one more reconciliation, or one less.
func (c *counts) add(namespace string, slow bool, n int) {
	count := func(of map[string]int) {
		if of[namespace] += n; of[namespace] == 0 {
			delete(of, namespace)
		}
	}
	count(c.ofNamespace)
	if slow {
		c.ofSlow += n
		count(c.ofNamespaceSlow)
	}
}

func newLimiter(workers int, isSlow func(types.NamespacedName) bool) *limiter {
	return &limiter{
		limits: limitsOf(workers), isSlow: isSlow, counts: counts{ofNamespace: map[string]int{}, ofNamespaceSlow: map[string]int{}},
	}
}

// Start implements source.Source: it learns the queue.
func (l *limiter) Start(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = queue
	return nil
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
	slow := l.isSlow(request.NamespacedName)
	if !l.admits(request.Namespace, slow) {
		if !slices.Contains(l.waiting, request) {
			l.waiting = append(l.waiting, request)
		}
		return nil, false
	}
	l.add(request.Namespace, slow, 1)
	return func() { l.release(request.Namespace, slow) }, true
}

func (l *limiter) release(namespace string, slow bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(namespace, slow, -1)
	// A woken one counts as running until all are, so that no more are woken than may run.
	for next, slow := l.next(); next >= 0; next, slow = l.next() {
		request := l.waiting[next]
		l.waiting = slices.Delete(l.waiting, next, next+1)
		l.add(request.Namespace, slow, 1)
		defer l.add(request.Namespace, slow, -1)
		l.queue.Add(request)
	}
}

// next returns the waiting request that may run, of the namespace with the fewest workers; -1 for none.
func (l *limiter) next() (next int, slow bool) {
	next = -1
	for i, request := range l.waiting {
		isSlow := l.isSlow(request.NamespacedName)
		if l.admits(request.Namespace, isSlow) && (next < 0 || l.counts.ofNamespace[request.Namespace] < l.counts.ofNamespace[l.waiting[next].Namespace]) {
			next, slow = i, isSlow
		}
	}
	return next, slow
}

func (l *limiter) admits(namespace string, slow bool) bool {
	return l.counts.ofNamespace[namespace] < l.limits.ofNamespace &&
		(!slow || l.counts.ofSlow < l.limits.ofSlow && l.counts.ofNamespaceSlow[namespace] < l.limits.ofNamespaceSlow)
}
