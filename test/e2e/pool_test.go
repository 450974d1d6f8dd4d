// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	goruntime "runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// longest are the tests that take most time by themselves, the longest first. They are the first to get what they wait for: one that began last
// would be alone at the end, with a core idle.
var longest = []string{
	"TestFleetCapacity", "TestGuestFaults", "TestFaults", "TestCapacity", "TestMachines", "TestOperatorFaults", "TestUpgrade", "TestGuestOutage",
	"TestRepair", "TestReclaim",
}

// clusterPool limits how many clusters have tests at once, to four a core: most of a test's time it waits for what happens by itself. The largest
// test needs four. Eight are the most, because a test may start control planes of its own: one holds five inotify instances, the programs of a
// guest and of a world some more, and Linux gives a user 128 by default.
var clusterPool = &pool{room: min(8, 4*goruntime.GOMAXPROCS(0)), lent: map[string]bool{}}

// pool lends room for clusters, and the guests of the world that tests share, each to one test at a time.
type pool struct {
	mutex sync.Mutex
	room  int
	lent  map[string]bool
	queue []*loan
}

// loan is what a test needs. It gets all of it at once: two that each had a part could wait for each other.
type loan struct {
	room   int
	guests []string
	rank   int
	given  chan struct{}
}

// borrow waits until the pool has room for so many clusters and these guests of the shared world, and returns them when the test ends.
func (p *pool) borrow(t *testing.T, room int, guests ...string) {
	t.Helper()
	l := &loan{room: room, guests: guests, rank: len(longest), given: make(chan struct{})}
	if i := slices.Index(longest, t.Name()); i >= 0 {
		l.rank = i
	}
	began := time.Now()
	p.mutex.Lock()
	p.queue = append(p.queue, l)
	slices.SortStableFunc(p.queue, func(a, b *loan) int { return a.rank - b.rank })
	p.lend()
	p.mutex.Unlock()
	<-l.given
	t.Logf("waited %s for the clusters that it needs", time.Since(began).Round(time.Second))
	t.Cleanup(func() {
		p.mutex.Lock()
		defer p.mutex.Unlock()
		p.room += l.room
		for _, guest := range l.guests {
			delete(p.lent, guest)
		}
		p.lend()
	})
}

// lend gives what is there, in the queue's order. No test overtakes another one in what that waits for: a guest, or room.
func (p *pool) lend() {
	wanted, full := map[string]bool{}, false
	p.queue = slices.DeleteFunc(p.queue, func(l *loan) bool {
		blocked := slices.ContainsFunc(l.guests, func(guest string) bool { return p.lent[guest] || wanted[guest] })
		if !blocked && !full && l.room <= p.room {
			p.room -= l.room
			for _, guest := range l.guests {
				p.lent[guest] = true
			}
			close(l.given)
			return true
		}
		for _, guest := range l.guests {
			wanted[guest] = true
		}
		full = full || !blocked
		return false
	})
}
