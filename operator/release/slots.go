// SPDX-License-Identifier: Apache-2.0

package release

import (
	"slices"
	"sync"

	"k8s.io/utils/lru"
)

const (
	// pulls is how many payloads are pulled at a time. It bounds the memory that they take until they were read.
	pulls = 8
	// pullsFrom is how many of them may be from the same registries: one that hangs holds each for a minute.
	pullsFrom = 3
	// retries is how many of them may be from registries that couldn't be reached the last time, and one at most from each of those.
	retries = 4
)

// slots says which pulls may begin. Tenants choose the registries, and one that hangs, or several, must leave room for the pulls from all
// others. Where registries are mirrors of each other, it is their list that hangs or doesn't: see payload.Registries.
type slots struct {
	mu sync.Mutex
	// running counts those that run, by the registries; retrying those of them that were let in as retries.
	running         map[string]int
	taken, retrying int
	// unreachable are the registries that couldn't be reached the last time.
	unreachable *lru.Cache
	waiting     []*waiter // in the order in which they came
}

type waiter struct {
	from  string
	retry bool // known when it begins
	begin chan struct{}
}

func newSlots() *slots {
	return &slots{running: map[string]int{}, unreachable: lru.New(failures)}
}

// acquire waits until a pull from these registries may begin. Its end is to be told, and whether they couldn't be reached.
func (s *slots) acquire(from string) (release func(unreachable bool)) {
	w := &waiter{from: from, begin: make(chan struct{})}
	s.mu.Lock()
	s.waiting = append(s.waiting, w)
	s.admit()
	s.mu.Unlock()
	<-w.begin
	return func(unreachable bool) { s.release(w, unreachable) }
}

func (s *slots) release(w *waiter, unreachable bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	if w.retry {
		s.retrying--
	}
	if s.running[w.from]--; s.running[w.from] == 0 {
		delete(s.running, w.from)
	}
	if unreachable {
		s.unreachable.Add(w.from, nil)
	} else {
		s.unreachable.Remove(w.from)
	}
	s.admit()
}

// admit lets everybody begin who may.
func (s *slots) admit() {
	s.waiting = slices.DeleteFunc(s.waiting, func(w *waiter) bool {
		_, retry := s.unreachable.Get(w.from)
		switch {
		case s.taken == pulls, s.running[w.from] == pullsFrom:
			return false
		case retry && (s.retrying == retries || s.running[w.from] > 0):
			return false
		case retry:
			s.retrying++
		}
		s.taken++
		s.running[w.from]++
		w.retry = retry
		close(w.begin)
		return true
	})
}
