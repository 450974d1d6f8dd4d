// SPDX-License-Identifier: Apache-2.0

package release

import (
	"sync"

	"github.com/autonode-io/autonode/internal/fairness"
	"github.com/autonode-io/autonode/internal/lru"
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
	mu    sync.Mutex
	pulls fairness.Limiter[*pull]
	// unreachable are the registries that were unreachable the last time.
	unreachable lru.Cache[string, struct{}]
}

type pull struct {
	from, namespace string
	begin           chan []fairness.Class
}

func newLimiter() *limiter {
	l := &limiter{unreachable: lru.New[string, struct{}](failures)}
	l.pulls.Classes = l.classes
	return l
}

// acquire waits until a pull from these registries, for a HostedCluster in namespace, may start. Call release at its
// end, with whether they were unreachable.
func (l *limiter) acquire(from, namespace string) (release func(unreachable bool)) {
	p := &pull{from: from, namespace: namespace, begin: make(chan []fairness.Class, 1)}
	l.mu.Lock()
	admitted, ok := l.pulls.Acquire(p)
	l.mu.Unlock()
	if !ok {
		admitted = <-p.begin
	}
	return func(unreachable bool) { l.release(p, admitted, unreachable) }
}

func (l *limiter) release(p *pull, admitted []fairness.Class, unreachable bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pulls.Release(admitted)
	if unreachable {
		l.unreachable.Add(p.from, struct{}{})
	} else {
		l.unreachable.Remove(p.from)
	}
	for next, admitted, ok := l.pulls.Next(); ok; next, admitted, ok = l.pulls.Next() {
		next.begin <- admitted
	}
}

// classes are the classes that a pull counts for: first its namespace, so that no namespace's queue delays another's.
func (l *limiter) classes(p *pull) []fairness.Class {
	classes := []fairness.Class{
		{Kind: "namespace", Name: p.namespace, Limit: pullsOf}, {Kind: "registries", Name: p.from, Limit: pullsFrom}, {Kind: "all", Limit: pulls},
	}
	if _, retry := l.unreachable.Get(p.from); retry {
		classes[1].Limit = 1
		classes = append(classes, fairness.Class{Kind: "retries", Limit: retries})
	}
	return classes
}
