// SPDX-License-Identifier: Apache-2.0

package csr

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

const (
	// workers is how many requests are decided on at a time. They mostly wait for answers.
	workers = 100
	// perGuest is how many of them may be of one guest, so that neither one that hangs nor one in which somebody makes requests by the
	// thousand keeps the others waiting.
	perGuest = 5
	// minRest is how long a guest is left alone after a call that it didn't answer. It doubles until maxRest.
	minRest = 5 * time.Second
	maxRest = 5 * time.Minute
)

// turns lets the requests of each guest have a few workers at a time. A request whose turn hasn't come is set aside, which takes no
// worker, and comes back when another one of its guest's is done.
type turns struct {
	clock clock.PassiveClock

	mu     sync.Mutex
	queue  workqueue.TypedRateLimitingInterface[Key] // nil until the controller starts
	guests map[types.NamespacedName]*turn            // by the HostedCluster
}

// turn is how it stands with one guest.
type turn struct {
	running int
	aside   []Key // in the order in which they came
	isAside sets.Set[Key]
	// rest is how long the guest is, or was last, left alone; zero once it has answered. Until then one request at a time tries.
	rest  time.Duration
	until time.Time
	// scout is the request that comes back when the rest is over; nil where there is none.
	scout *Key
}

// finding is what a turn tells of the guest.
type finding int

const (
	// unknown: it wasn't asked, or somebody else failed.
	unknown finding = iota
	// answers: it did what it was asked for.
	answers
	// silent: it didn't answer.
	silent
	// gone: there is no connection, whose successor lists all requests.
	gone
)

func newTurns(clock clock.PassiveClock) *turns {
	return &turns{clock: clock, guests: map[types.NamespacedName]*turn{}}
}

func (t *turns) start(queue workqueue.TypedRateLimitingInterface[Key]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queue = queue
}

// take begins the turn of a request. It returns false if that hasn't come: the request comes back by itself then, or, where again isn't
// zero, has to be brought back by the caller after that time.
func (t *turns) take(key Key) (ok bool, again time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.of(key)
	if g.running < g.limit(t.clock.Now()) {
		g.running++
		if g.scout != nil && *g.scout == key {
			g.scout = nil
		}
		return true, 0
	}
	return false, g.wait(key, t.clock.Now())
}

// give ends the turn of a request. Where again isn't zero, the caller has to bring it back after that time. Rest is how long
// the guest is to be left alone at least, zero if nobody knows.
func (t *turns) give(key Key, f finding, rest time.Duration) (again time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	g, now := t.of(key), t.clock.Now()
	g.running--
	switch f {
	case answers, gone:
		g.rest, g.until = 0, time.Time{}
	case silent:
		switch {
		case rest > 0: // others have found that out, and say how long
			g.rest = max(g.rest, minRest)
			if until := now.Add(rest); until.After(g.until) {
				g.until = until
			}
		case !now.Before(g.until): // else another one of those that were under way together has said so
			g.rest = min(max(2*g.rest, minRest), maxRest)
			g.until = now.Add(g.rest)
		}
		again = g.wait(key, now)
	}
	for n := g.limit(now) - g.running; n > 0 && len(g.aside) > 0; n-- {
		next := g.aside[0]
		g.aside = g.aside[1:]
		g.isAside.Delete(next)
		t.queue.Add(next)
	}
	t.tidy(key.HostedCluster, g)
	return again
}

// drop forgets the guest of a HostedCluster that is gone, as soon as none of its requests is under way.
func (t *turns) drop(hostedCluster types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if g, ok := t.guests[hostedCluster]; ok {
		g.rest, g.until = 0, time.Time{}
		t.tidy(hostedCluster, g)
	}
}

func (t *turns) tidy(hostedCluster types.NamespacedName, g *turn) {
	if g.running == 0 && len(g.aside) == 0 && g.scout == nil && g.rest == 0 {
		delete(t.guests, hostedCluster)
	}
}

func (t *turns) of(key Key) *turn {
	g, ok := t.guests[key.HostedCluster]
	if !ok {
		g = &turn{isAside: sets.New[Key]()}
		t.guests[key.HostedCluster] = g
	}
	return g
}

// limit is how many requests may be under way now.
func (g *turn) limit(now time.Time) int {
	switch {
	case now.Before(g.until):
		return 0
	case g.rest > 0:
		return 1
	default:
		return perGuest
	}
}

// wait sets a request aside. While the guest rests and nothing is under way, nobody would bring those back: the first one comes back by
// time, with what again says.
func (g *turn) wait(key Key, now time.Time) (again time.Duration) {
	if left := g.until.Sub(now); left > 0 && (g.scout == nil || *g.scout == key) {
		g.scout = &key
		return left
	}
	if g.scout != nil && *g.scout == key {
		g.scout = nil
	}
	if !g.isAside.Has(key) {
		g.isAside.Insert(key)
		g.aside = append(g.aside, key)
	}
	return 0
}
