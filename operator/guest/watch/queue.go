// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// burst is the delay of events of kinds that come in bursts: fifty joining nodes cause one or two reconciliations.
const burst = 500 * time.Millisecond

// Queue is the queue of the controller that reconciles HostedClusters.
type Queue struct {
	mu    sync.RWMutex
	queue workqueue.TypedRateLimitingInterface[reconcile.Request] // nil until the controller starts
	rates *rates
}

func newQueue(clk clock.PassiveClock) *Queue { return &Queue{rates: newRates(clk)} }

// Start sets the controller's queue.
func (q *Queue) Start(queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue = queue
}

// Enqueue enqueues a HostedCluster.
func (q *Queue) Enqueue(hostedCluster types.NamespacedName) { q.enqueueAfter(hostedCluster, 0) }

// EnqueueEvent enqueues a HostedCluster for what its guest's API server said, within the guest's budget.
func (q *Queue) EnqueueEvent(hostedCluster types.NamespacedName) {
	q.enqueueEvent(hostedCluster, burst)
}

// OverBudget reports whether a guest has just caused more events than one guest may.
func (q *Queue) OverBudget(hostedCluster types.NamespacedName) bool {
	return q.rates.exceeded(hostedCluster)
}

func (q *Queue) enqueueEvent(hostedCluster types.NamespacedName, after time.Duration) {
	q.enqueueAfter(hostedCluster, max(after, q.rates.delay(hostedCluster)))
}

func (q *Queue) enqueueAfter(hostedCluster types.NamespacedName, after time.Duration) {
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.queue != nil { // else the controller reconciles everything as it starts
		q.queue.AddAfter(reconcile.Request{NamespacedName: hostedCluster}, after)
	}
}

// handler enqueues a HostedCluster for the events of one kind.
func (q *Queue) handler(hostedCluster types.NamespacedName, kind watched) toolscache.ResourceEventHandler {
	enqueue := func() { q.enqueueEvent(hostedCluster, kind.delay) }
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { enqueue() },
		DeleteFunc: func(any) { enqueue() },
		UpdateFunc: func(before, after any) {
			a, ok := before.(client.Object)
			b, ok2 := after.(client.Object)
			if ok && ok2 && a.GetResourceVersion() == b.GetResourceVersion() {
				return
			}
			if kind.differs == nil || !ok || !ok2 || kind.differs(a, b) {
				enqueue()
			}
		},
	}
}
