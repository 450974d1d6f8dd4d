// SPDX-License-Identifier: Apache-2.0

package fairness

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestLimiter(t *testing.T) {
	// Work of tenant "a" is "a…"; three of a tenant run, and one that is heavy.
	limiter := func() *Limiter[string] {
		return &Limiter[string]{Classes: func(item string) []Class {
			classes := []Class{{Kind: "tenant", Name: item[:1], Limit: 3}, {Kind: "all", Limit: 5}}
			if item[len(item)-1] == '!' {
				classes = append(classes, Class{Kind: "heavy", Limit: 1})
			}
			return classes
		}}
	}
	acquire := func(l *Limiter[string], items ...string) (admitted []string) {
		for _, item := range items {
			if _, ok := l.Acquire(item); ok {
				admitted = append(admitted, item)
			}
		}
		return admitted
	}
	next := func(l *Limiter[string]) (items []string) {
		for item, _, ok := l.Next(); ok; item, _, ok = l.Next() {
			items = append(items, item)
		}
		return items
	}

	t.Run("When work ends, it should admit what fits, first of the tenant with the least running, in order of arrival, once", func(t *testing.T) {
		g, l := NewWithT(t), limiter()
		g.Expect(acquire(l, "a1!", "a2", "a3", "a4", "a5", "a4", "b1!", "b2", "b3", "b4", "c1")).To(Equal([]string{"a1!", "a2", "a3", "b2", "b3"}))
		g.Expect(next(l)).To(BeEmpty())
		l.Release(l.Classes("a2"))
		g.Expect(next(l)).To(Equal([]string{"c1"}))
		l.Release(l.Classes("a1!"))
		l.Release(l.Classes("b2"))
		g.Expect(next(l)).To(Equal([]string{"a4", "b1!"}))
		for _, item := range []string{"a3", "a4", "b1!", "b3", "c1"} {
			l.Release(l.Classes(item))
		}
		g.Expect(next(l)).To(Equal([]string{"a5", "b4"}))
	})

	t.Run("When all have ended, it should count none, though one counts as something else now", func(t *testing.T) {
		g, l := NewWithT(t), limiter()
		admitted, ok := l.Acquire("a1!")
		g.Expect(ok).To(BeTrue())
		l.Classes = func(string) []Class { return nil }
		l.Release(admitted)
		g.Expect(l.running).To(BeEmpty())
		g.Expect(l.waiting).To(BeEmpty())
	})
}
