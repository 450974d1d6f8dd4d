// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/guest/egress"
	"github.com/autonode-io/autonode/operator/message"
	"github.com/autonode-io/autonode/operator/scope"
)

const (
	// eventsAtOnce is the burst of guest events that wake a HostedCluster without delay, eventsPerSecond the rate after
	// it. A launch of 1,000 nodes causes about 10,000 events.
	eventsAtOnce    = 30_000
	eventsPerSecond = 50
	// slowed is the delay of each event beyond the budget. The queue merges delayed events into one reconciliation.
	slowed = 10 * time.Second
	// recheckBudget is the interval at which a guest beyond its budget is checked.
	recheckBudget = 30 * time.Second
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
	return slowed
}

// exceeded reports whether events of a guest were delayed in the last recheckBudget.
func (r *rates) exceeded(hostedCluster types.NamespacedName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.of(hostedCluster)
	return g != nil && !g.last.IsZero() && r.clock.Since(g.last) <= recheckBudget
}

func (r *rates) of(hostedCluster types.NamespacedName) *wakes {
	known, _ := r.guests.Get(hostedCluster)
	g, _ := known.(*wakes)
	return g
}

// reached sets GuestReachable for a guest that answers. Its reason says whether the guest is within its budget.
func (c *Connections) reached(s *scope.Scope) scope.Result {
	host := s.Guest.Config.Host
	switch {
	case c.access.dialer.State(s.ClusterKey().String()) != egress.Within:
		setReachable(s, metav1.ConditionTrue, v1beta1.GuestOverBudgetReason, overBudget(host)+"; the operator reads it at a lower rate")
	case c.events.rates.exceeded(client.ObjectKeyFromObject(s.HostedCluster)):
		setReachable(s, metav1.ConditionTrue, v1beta1.GuestOverBudgetReason, host+" changes more objects than one guest may; it is reconciled every "+slowed.String())
	default:
		c.readable(s)
		return scope.Result{}
	}
	return scope.Result{RequeueAfter: recheckBudget}
}

// readable sets GuestReachable for a guest within its budget.
func (c *Connections) readable(s *scope.Scope) {
	reason, text := v1beta1.AsExpectedReason, ""
	if linked, err := c.links.Of(s.ClusterKey()); err == nil && linked.Store != nil {
		if count, example := linked.Store.Unreadable(); count > 0 {
			reason = v1beta1.GuestObjectsUnreadableReason
			text = fmt.Sprintf("%d objects in the guest can't be read completely, such as %s; the cluster's admin has to correct or delete them", count, message.QuoteUpTo(example, 2*message.QuoteLimit))
		}
	}
	setReachable(s, metav1.ConditionTrue, reason, text)
}

func overBudget(host string) string { return host + " sends more bytes than one guest may" }
