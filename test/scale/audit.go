// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"slices"
	"strings"
	"time"

	"github.com/autonode-io/autonode/test/audit"
)

// request is one kind of request.
type request struct{ verb, resource string }

// writes reports whether requests of this kind change something. Reviews are questions, and a Lease is held by renewing it.
func (r request) writes() bool {
	switch r.verb {
	case "create", "update", "patch", "delete", "deletecollection":
		return r.resource != "leases" && !strings.HasSuffix(r.resource, "reviews")
	}
	return false
}

// counts are how many requests of each kind were answered.
type counts struct {
	of        map[request]int
	lastWrite time.Time
}

func newCounts() *counts { return &counts{of: map[request]int{}} }

func (c *counts) add(other *counts) {
	for request, n := range other.of {
		c.of[request] += n
	}
	c.lastWrite = later(c.lastWrite, other.lastWrite)
}

func (c *counts) total(match func(request) bool) int {
	total := 0
	for request, n := range c.of {
		if match(request) {
			total += n
		}
	}
	return total
}

func (c *counts) sorted() []request {
	requests := make([]request, 0, len(c.of))
	for r := range c.of {
		requests = append(requests, r)
	}
	slices.SortFunc(requests, func(a, b request) int {
		if a.writes() != b.writes() {
			if a.writes() {
				return -1
			}
			return 1
		}
		if c.of[a] != c.of[b] {
			return c.of[b] - c.of[a]
		}
		return strings.Compare(a.verb+a.resource, b.verb+b.resource)
	})
	return requests
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// answered is true once for each request: for a watch as it begins, because that may not end.
func answered(r *audit.Record) bool {
	if r.Verb == "watch" {
		return r.Stage == "ResponseStarted"
	}
	return r.Stage == "ResponseComplete"
}

func requestOf(r *audit.Record) request {
	path, _, _ := strings.Cut(r.RequestURI, "?")
	switch resource := r.Resource(); {
	case resource != "":
		return request{r.Verb, resource}
	case path == "/":
		return request{r.Verb, "probe"}
	default:
		return request{r.Verb, "discovery"}
	}
}

// auditLog reads on where it stopped.
type auditLog struct {
	tail audit.Tail
	// aside selects requests that aren't counted; nil selects none.
	aside func(*audit.Record) bool
}

func newAuditLog(path string) *auditLog { return &auditLog{tail: audit.Tail{Path: path}} }

// next counts what was written since the last call.
func (l *auditLog) next() (*counts, error) {
	c := newCounts()
	if err := l.tail.Each(func(r *audit.Record) {
		if !answered(r) || l.aside != nil && l.aside(r) {
			return
		}
		request := requestOf(r)
		c.of[request]++
		if request.writes() {
			c.lastWrite = later(c.lastWrite, r.StageTimestamp)
		}
	}); err != nil {
		return nil, err
	}
	return c, nil
}
