// SPDX-License-Identifier: Apache-2.0

package release

import (
	"slices"
	"sync"

	"k8s.io/utils/lru"
)

const (
	// pulls is the concurrency limit of pulls. It limits the memory that they take.
	pulls = 8
	// pullsFrom is the limit for the same registries: an unresponsive one holds each pull for a minute.
	pullsFrom = 3
	// pullsOf is the limit for the HostedClusters of one namespace: their authors choose the registries, and any number of them may be slow.
	pullsOf = 6
	// retries is the limit for registries that were unreachable the last time, with one pull at most from each.
	retries = 4
)

// limiter limits concurrent pulls. Tenants choose the registries, and unresponsive ones must leave room for all other
// pulls. For mirrors the limit applies to their list: see payload.Registries.
type limiter struct {
	mu sync.Mutex
	// running counts the pulls in progress by registries, of by namespace, and retrying those of them admitted as retries.
	running, of     map[string]int
	taken, retrying int
	// unreachable are the registries that were unreachable the last time.
	unreachable *lru.Cache
	waiting     []*waiter // in the order in which they came
}

type waiter struct {
	from, namespace string
	retry           bool // known when it begins
	begin           chan struct{}
}

func newLimiter() *limiter {
	return &limiter{running: map[string]int{}, of: map[string]int{}, unreachable: lru.New(failures)}
}

// acquire waits until a pull from these registries, for a HostedCluster in namespace, may start. Call release at its
// end, with whether they were unreachable.
func (s *limiter) acquire(from, namespace string) (release func(unreachable bool)) {
	w := &waiter{from: from, namespace: namespace, begin: make(chan struct{})}
	s.mu.Lock()
	s.waiting = append(s.waiting, w)
	s.admit()
	s.mu.Unlock()
	<-w.begin
	return func(unreachable bool) { s.release(w, unreachable) }
}

func (s *limiter) release(w *waiter, unreachable bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	if w.retry {
		s.retrying--
	}
	if s.running[w.from]--; s.running[w.from] == 0 {
		delete(s.running, w.from)
	}
	if s.of[w.namespace]--; s.of[w.namespace] == 0 {
		delete(s.of, w.namespace)
	}
	if unreachable {
		s.unreachable.Add(w.from, nil)
	} else {
		s.unreachable.Remove(w.from)
	}
	s.admit()
}

// admit starts every pull within the limits: first those of the namespace with the fewest pulls, so that no namespace's
// queue delays another's.
func (s *limiter) admit() {
	for {
		next := -1
		for i, w := range s.waiting {
			if s.admissible(w) && (next < 0 || s.of[w.namespace] < s.of[s.waiting[next].namespace]) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		w := s.waiting[next]
		s.waiting = slices.Delete(s.waiting, next, next+1)
		if w.retry = s.retries(w); w.retry {
			s.retrying++
		}
		s.taken++
		s.running[w.from]++
		s.of[w.namespace]++
		close(w.begin)
	}
}

func (s *limiter) retries(w *waiter) bool {
	_, retry := s.unreachable.Get(w.from)
	return retry
}

func (s *limiter) admissible(w *waiter) bool {
	switch {
	case s.taken == pulls, s.running[w.from] == pullsFrom, s.of[w.namespace] == pullsOf:
		return false
	default:
		return !s.retries(w) || s.retrying < retries && s.running[w.from] == 0
	}
}
