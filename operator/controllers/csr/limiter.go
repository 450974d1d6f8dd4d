// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	"github.com/autonode-io/autonode/internal/controllerqueue"
	"github.com/autonode-io/autonode/operator/guest/outage"
)

const (
	// workers is how many requests are handled at a time. They mostly wait for answers.
	workers = 100
	// perGuest is the concurrency limit of one guest, so that neither an unresponsive guest nor one with thousands of
	// requests delays the others.
	perGuest = 5
)

// limiter limits the concurrent requests of each guest. A request above the limit is queued, takes no worker, and is
// enqueued when another one of its guest completes.
type limiter struct {
	clock clock.PassiveClock
	queue controllerqueue.Queue[Key]

	mu     sync.Mutex
	guests map[types.NamespacedName]*guestLimiter // by the HostedCluster
}

// guestLimiter is the state of one guest.
type guestLimiter struct {
	running  int
	queued   []Key // in order of arrival
	isQueued sets.Set[Key]
	// breaker is half-open until the guest has answered: only one request at a time is tried.
	breaker outage.Breaker
	// probe is the half-open probe: the request that is retried when the back-off ends; nil for none.
	probe *Key
}

// finding is the guest's state, as handling a request showed it.
type finding int

const (
	// unknown: it wasn't called, or something else failed.
	unknown finding = iota
	// answers: it answered.
	answers
	// unresponsive: it didn't answer.
	unresponsive
	// gone: there is no connection. The next one lists all requests.
	gone
)

func newLimiter(clock clock.PassiveClock) *limiter {
	return &limiter{clock: clock, guests: map[types.NamespacedName]*guestLimiter{}}
}

// acquire starts handling a request. It returns false above the limit: the request is enqueued later, or, if requeueAfter
// isn't zero, the caller requeues it after that time.
func (l *limiter) acquire(key Key) (ok bool, requeueAfter time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.guest(key)
	if g.running < g.limit(l.clock.Now()) {
		g.running++
		if g.probe != nil && *g.probe == key {
			g.probe = nil
		}
		return true, 0
	}
	return false, g.wait(key, l.clock.Now())
}

// release completes a request. If requeueAfter isn't zero, the caller requeues it after that time. backoff is the guest's
// minimum back-off, zero if unknown.
func (l *limiter) release(key Key, f finding, backoff time.Duration) (requeueAfter time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g, now := l.guest(key), l.clock.Now()
	g.running--
	switch f {
	case answers, gone:
		g.breaker = outage.Breaker{}
	case unresponsive:
		switch {
		case backoff > 0: // the connection's back-off applies
			g.breaker.Hold(now, backoff)
		case g.breaker.Remaining(now) == 0: // else a concurrent request has already reported it
			g.breaker.Trip(now)
		}
		requeueAfter = g.wait(key, now)
	}
	for n := g.limit(now) - g.running; n > 0 && len(g.queued) > 0; n-- {
		next := g.queued[0]
		g.queued = g.queued[1:]
		g.isQueued.Delete(next)
		l.queue.Add(next)
	}
	l.tidy(key.HostedCluster, g)
	return requeueAfter
}

// drop removes the state of a deleted HostedCluster's guest once none of its requests is in progress.
func (l *limiter) drop(hostedCluster types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g, ok := l.guests[hostedCluster]; ok {
		g.breaker = outage.Breaker{}
		l.tidy(hostedCluster, g)
	}
}

func (l *limiter) tidy(hostedCluster types.NamespacedName, g *guestLimiter) {
	if g.running == 0 && len(g.queued) == 0 && g.probe == nil && g.breaker.Closed() {
		delete(l.guests, hostedCluster)
	}
}

func (l *limiter) guest(key Key) *guestLimiter {
	g, ok := l.guests[key.HostedCluster]
	if !ok {
		g = &guestLimiter{isQueued: sets.New[Key]()}
		l.guests[key.HostedCluster] = g
	}
	return g
}

// limit is how many requests may be in progress now.
func (g *guestLimiter) limit(now time.Time) int {
	switch {
	case g.breaker.Closed():
		return perGuest
	case g.breaker.Remaining(now) > 0:
		return 0
	default:
		return 1
	}
}

// wait queues a request. During a back-off with no request in progress nothing would enqueue the queued ones, so the
// first one is the probe, which the caller requeues after requeueAfter.
func (g *guestLimiter) wait(key Key, now time.Time) (requeueAfter time.Duration) {
	if remaining := g.breaker.Remaining(now); remaining > 0 && (g.probe == nil || *g.probe == key) {
		g.probe = &key
		return remaining
	}
	if g.probe != nil && *g.probe == key {
		g.probe = nil
	}
	if !g.isQueued.Has(key) {
		g.isQueued.Insert(key)
		g.queued = append(g.queued, key)
	}
	return 0
}
