// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/autonode-io/autonode/internal/controllerqueue"
	"github.com/autonode-io/autonode/internal/lru"
)

const (
	// burst is the delay of events of kinds that come in bursts: fifty joining nodes cause one or two reconciliations.
	burst = 500 * time.Millisecond
	// eventsAtOnce is the burst of guest events that enqueue a HostedCluster without delay, eventsPerSecond the rate after
	// it. A launch of 1,000 nodes causes about 10,000 events.
	eventsAtOnce    = 30_000
	eventsPerSecond = 50
	// Delay of each event beyond the budget. The queue merges delayed events into one reconciliation.
	Delay = 10 * time.Second
	// RecheckBudget is the interval at which a guest beyond its budget is checked.
	RecheckBudget = 30 * time.Second
	// guestsKnown is the number of guests with a limiter. The least recently used one is replaced first.
	guestsKnown = 1 << 14
)

// Queue is the queue of the controller that reconciles HostedClusters.
type Queue struct {
	queue controllerqueue.Queue[reconcile.Request]
	rates *rates
}

func newQueue(clk clock.PassiveClock) *Queue { return &Queue{rates: newRates(clk)} }

// Source is to be a source of that controller.
func (q *Queue) Source() source.Source { return &q.queue }

// Enqueue enqueues a HostedCluster.
func (q *Queue) Enqueue(hostedCluster types.NamespacedName) { q.enqueueAfter(hostedCluster, 0) }

// EnqueueEvent enqueues a HostedCluster for an event of its guest's API server, within the guest's budget.
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
	q.queue.AddAfter(reconcile.Request{NamespacedName: hostedCluster}, after)
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

// rates limit the rate at which guests enqueue their HostedClusters.
type rates struct {
	clock clock.PassiveClock

	mu     sync.Mutex
	guests lru.Cache[types.NamespacedName, *guestRate] // by the HostedCluster
}

type guestRate struct {
	limiter *rate.Limiter
	last    time.Time // when an event was delayed
}

func newRates(clk clock.PassiveClock) *rates {
	return &rates{clock: clk, guests: lru.New[types.NamespacedName, *guestRate](guestsKnown)}
}

// delay accounts for an event of a guest, and returns the event's delay.
func (r *rates) delay(hostedCluster types.NamespacedName) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	g, ok := r.guests.Get(hostedCluster)
	if !ok {
		g = &guestRate{limiter: rate.NewLimiter(eventsPerSecond, eventsAtOnce)}
		r.guests.Add(hostedCluster, g)
	}
	now := r.clock.Now()
	if g.limiter.AllowN(now, 1) {
		return 0
	}
	g.last = now
	return Delay
}

// exceeded reports whether events of a guest were delayed in the last RecheckBudget.
func (r *rates) exceeded(hostedCluster types.NamespacedName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	g, ok := r.guests.Get(hostedCluster)
	return ok && !g.last.IsZero() && r.clock.Since(g.last) <= RecheckBudget
}
