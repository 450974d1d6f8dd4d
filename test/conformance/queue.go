// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

// queue returns specs, the longest first, so that all guests finish at about the same time. Of specs that need the same
// resource of this machine only one runs at a time, whatever the provider.
type queue struct {
	claims *claims

	mu    sync.Mutex
	specs []spec
}

// claims are the resources in use. All providers' queues share them.
type claims struct {
	mu    sync.Mutex
	freed *sync.Cond
	taken map[string]bool
}

func newClaims() *claims {
	c := &claims{taken: map[string]bool{}}
	c.freed = sync.NewCond(&c.mu)
	return c
}

// claim acquires a resource, and reports whether it did; the empty resource is always free. It can wait for it.
func (c *claims) claim(ctx context.Context, need string, wait bool) bool {
	if need == "" {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer context.AfterFunc(ctx, c.freed.Broadcast)()
	for c.taken[need] {
		if !wait || ctx.Err() != nil {
			return false
		}
		c.freed.Wait()
	}
	c.taken[need] = true
	return true
}

func (c *claims) release(need string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.taken, need)
	c.freed.Broadcast()
}

func newQueue(specs []spec, last, committed Results, claims *claims) *queue {
	specs = slices.Clone(specs)
	slices.SortStableFunc(specs, func(a, b spec) int {
		// Specs that can only run one after the other come first, otherwise they are all left at the end.
		if first := cmp.Compare(len(b.needs()), len(a.needs())); first != 0 && (a.needs() == "" || b.needs() == "") {
			return first
		}
		return cmp.Compare(estimate(b.text, last, committed), estimate(a.text, last, committed))
	})
	return &queue{specs: specs, claims: claims}
}

// estimate returns a spec's likely duration: that of the last run here, otherwise of the committed one.
func estimate(spec string, last, committed Results) time.Duration {
	for _, results := range []Results{last, committed} {
		if result, ok := results.find(spec); ok && result.Passed {
			return time.Duration(result.Seconds * float64(time.Second))
		}
	}
	return time.Minute
}

// take returns the next spec, and a function to call when it is done. It skips specs whose resource is in use, and
// waits if only those are left. It returns false when no spec is left, or ctx is over.
func (q *queue) take(ctx context.Context) (next spec, done func(), ok bool) {
	q.mu.Lock()
	i := slices.IndexFunc(q.specs, func(s spec) bool { return q.claims.claim(ctx, s.needs(), false) })
	wait := i < 0
	if wait {
		i = 0
	}
	if len(q.specs) == 0 {
		q.mu.Unlock()
		return spec{}, nil, false
	}
	next = q.specs[i]
	q.specs = slices.Delete(q.specs, i, i+1)
	q.mu.Unlock()
	if wait && !q.claims.claim(ctx, next.needs(), true) {
		return spec{}, nil, false
	}
	return next, func() { q.claims.release(next.needs()) }, true
}
