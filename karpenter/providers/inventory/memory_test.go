// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"testing"

	"github.com/autonode-io/autonode/karpenter/providers/change"
)

const gib = 1 << 30

var largeRevision = Revision{Source: "TestMachineTemplate.infrastructure.cluster.x-k8s.io/c4-largeRevision", ContentHash: "1"}

func TestMemory(t *testing.T) {
	expect := func(t *testing.T, m *memory, f Revision, want int64) {
		t.Helper()
		if got, known := m.Of(f); !known || got != want {
			t.Errorf("%v has %d, %t; want %d", f, got, known, want)
		}
	}
	t.Run("When no node of a template was observed, it should not be known", func(t *testing.T) {
		m := newMemory(&change.Log[Change]{})
		m.Observe("a", largeRevision, 7*gib)
		for _, other := range []Revision{{Source: largeRevision.Source, ContentHash: "2"}, {Source: "other", ContentHash: "1"}} {
			if bytes, known := m.Of(other); known {
				t.Errorf("%v has %d", other, bytes)
			}
		}
	})
	t.Run("When nodes of a template differ, it should be the least of those there are, down to a MiB", func(t *testing.T) {
		m := newMemory(&change.Log[Change]{})
		m.Observe("a", largeRevision, 7*gib+5)
		expect(t, m, largeRevision, 7*gib)
		m.Observe("b", largeRevision, 6*gib)
		expect(t, m, largeRevision, 6*gib)
		m.Observe("c", largeRevision, 8*gib)
		expect(t, m, largeRevision, 6*gib)
		m.Forget("b")
		expect(t, m, largeRevision, 7*gib)
	})
	t.Run("When the last node goes, it should stay known", func(t *testing.T) {
		m := newMemory(&change.Log[Change]{})
		m.Observe("a", largeRevision, 7*gib)
		m.Forget("a")
		expect(t, m, largeRevision, 7*gib)
		m.Observe("b", largeRevision, 8*gib)
		expect(t, m, largeRevision, 8*gib)
	})
	t.Run("When a node reports another memory, it should follow", func(t *testing.T) {
		m := newMemory(&change.Log[Change]{})
		m.Observe("a", largeRevision, 7*gib)
		m.Observe("a", largeRevision, 9*gib)
		expect(t, m, largeRevision, 9*gib)
	})
	t.Run("When a node's name returns with another template, it should count for that alone", func(t *testing.T) {
		m := newMemory(&change.Log[Change]{})
		small := Revision{Source: "small", ContentHash: "1"}
		m.Observe("a", small, 3*gib)
		m.Observe("b", largeRevision, 8*gib)
		m.Observe("a", largeRevision, 7*gib)
		m.Observe("c", small, 4*gib)
		expect(t, m, largeRevision, 7*gib)
		expect(t, m, small, 4*gib)
	})
	t.Run("When a node reports no memory yet, it should teach nothing", func(t *testing.T) {
		m := newMemory(&change.Log[Change]{})
		m.Observe("a", largeRevision, 0)
		if _, known := m.Of(largeRevision); known {
			t.Error("known")
		}
	})
	t.Run("When an answer changes, it should change the sequence, and otherwise not", func(t *testing.T) {
		sequence := &change.Log[Change]{}
		m := newMemory(sequence)
		var changes []int
		last := sequence.Sequence()
		for i, do := range []func(){
			func() { m.Observe("a", largeRevision, 7*gib) },
			func() { m.Observe("a", largeRevision, 7*gib) },
			func() { m.Observe("b", largeRevision, 8*gib) },
			func() { m.Observe("c", largeRevision, 6*gib) },
			func() { m.Forget("b") },
			func() { m.Forget("c") },
			func() { m.Forget("a") },
		} {
			do()
			if now := sequence.Sequence(); now != last {
				changes, last = append(changes, i), now
			}
		}
		if fmt.Sprint(changes) != "[0 3 5]" {
			t.Errorf("changed at %v", changes)
		}
	})
	t.Run("When a template is edited again and again, it should forget the revisions that no node has", func(t *testing.T) {
		m := newMemory(&change.Log[Change]{})
		m.Observe("stays", largeRevision, 7*gib)
		for i := range MaxRevisions + 100 {
			m.Observe("changes", Revision{Source: "edited", ContentHash: fmt.Sprint(i)}, 8*gib)
		}
		if len(m.observed) > MaxRevisions || len(m.nodes) != 2 {
			t.Errorf("%d revisions and %d nodes are remembered", len(m.observed), len(m.nodes))
		}
		expect(t, m, largeRevision, 7*gib)
		expect(t, m, Revision{Source: "edited", ContentHash: fmt.Sprint(MaxRevisions + 99)}, 8*gib)
	})
}
