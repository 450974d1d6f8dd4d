// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
)

// specsOf makes specs of which those in bound need the same port.
func specsOf(bound map[string]bool, texts ...string) []spec {
	s := &suite{needs: func(text string) string {
		if bound[text] {
			return "8080"
		}
		return ""
	}}
	var specs []spec
	for _, text := range texts {
		specs = append(specs, spec{suite: s, text: text})
	}
	return specs
}

func drain(t *testing.T, q *queue) []string {
	t.Helper()
	var texts []string
	for {
		next, done, ok := q.take(t.Context())
		if !ok {
			return texts
		}
		done()
		texts = append(texts, next.text)
	}
}

func TestQueue(t *testing.T) {
	t.Run("When the last run is known, it should hand out the longest specs first", func(t *testing.T) {
		last := Results{Specs: []Result{{Spec: "a", Passed: true, Seconds: 5}, {Spec: "b", Passed: true, Seconds: 500}, {Spec: "c", Passed: true, Seconds: 50}}}
		q := newQueue(specsOf(nil, "a", "b", "c"), last, Results{}, newClaims())
		if diff := cmp.Diff([]string{"b", "c", "a"}, drain(t, q)); diff != "" {
			t.Errorf("order (-want +got):\n%s", diff)
		}
	})

	t.Run("When there was no run here, it should order the specs by the committed one", func(t *testing.T) {
		committed := Results{Specs: []Result{{Spec: "a", Passed: true, Seconds: 5}, {Spec: "b", Passed: true, Seconds: 500}}}
		q := newQueue(specsOf(nil, "a", "unknown", "b"), Results{}, committed, newClaims())
		if diff := cmp.Diff([]string{"b", "unknown", "a"}, drain(t, q)); diff != "" {
			t.Errorf("order (-want +got):\n%s", diff)
		}
	})

	t.Run("When a spec's port is taken, it should hand out others, and wait when there are none", func(t *testing.T) {
		g := NewWithT(t)
		ports := newClaims()
		bound := map[string]bool{"Chaos 1": true, "Chaos 2": true}
		ours := newQueue(specsOf(bound, "Chaos 1", "other"), Results{}, Results{}, ports)
		theirs := newQueue(specsOf(bound, "Chaos 2"), Results{}, Results{}, ports)

		first, done, ok := ours.take(t.Context())
		g.Expect(ok).To(BeTrue())
		g.Expect(first.text).To(Equal("Chaos 1"))
		taken := make(chan string)
		go func() {
			next, done, _ := theirs.take(t.Context())
			done()
			taken <- next.text
		}()
		second, _, ok := ours.take(t.Context())
		g.Expect(ok).To(BeTrue())
		g.Expect(second.text).To(Equal("other"))
		g.Consistently(taken, "50ms").ShouldNot(Receive())

		done()
		g.Eventually(taken).Should(Receive(Equal("Chaos 2")))
	})

	t.Run("When it is told to end while it waits for a port, it should hand out nothing", func(t *testing.T) {
		g := NewWithT(t)
		ports := newClaims()
		g.Expect(ports.claim(t.Context(), "8080", false)).To(BeTrue())
		ctx, cancel := context.WithCancel(t.Context())
		q := newQueue(specsOf(map[string]bool{"Chaos": true}, "Chaos"), Results{}, Results{}, ports)
		ended := make(chan bool)
		go func() {
			_, _, ok := q.take(ctx)
			ended <- ok
		}()
		cancel()
		g.Eventually(ended).Should(Receive(BeFalse()))
	})
}
