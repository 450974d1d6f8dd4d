// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
)

const (
	// eventsAtOnce is the burst of guest events that wake a HostedCluster without delay, eventsPerSecond the rate after
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

// rates limit the rate at which guests wake their HostedClusters.
type rates struct {
	clock clock.PassiveClock

	mu     sync.Mutex
	guests *lru.Cache // of *wakes, by the HostedCluster
}

type wakes struct {
	limiter *rate.Limiter
	last    time.Time // when an event was delayed
}

func newRates(clk clock.PassiveClock) *rates { return &rates{clock: clk, guests: lru.New(guestsKnown)} }

// delay accounts for an event of a guest, and returns the event's delay.
func (r *rates) delay(hostedCluster types.NamespacedName) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.of(hostedCluster)
	if g == nil {
		g = &wakes{limiter: rate.NewLimiter(eventsPerSecond, eventsAtOnce)}
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
	g := r.of(hostedCluster)
	return g != nil && !g.last.IsZero() && r.clock.Since(g.last) <= RecheckBudget
}

func (r *rates) of(hostedCluster types.NamespacedName) *wakes {
	known, _ := r.guests.Get(hostedCluster)
	g, _ := known.(*wakes)
	return g
}
