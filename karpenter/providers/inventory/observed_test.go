// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/autonode-io/autonode/karpenter/providers/change"
)

const gib = 1 << 30

var largeRevision = Revision{
	Source: "TestMachineTemplate.infrastructure.cluster.x-k8s.io/c4-largeRevision", ContentHash: "1", BootstrapHash: "1", NodeClassHash: "1",
}

// nodes are an observed whose nodes report memory alone.
type nodes struct {
	*observed
	t     *testing.T
	clock *clocktesting.FakeClock
}

func newNodes(t *testing.T) nodes {
	clk := clocktesting.NewFakeClock(time.Now())
	return nodes{newObserved(clk, &change.Log[Change]{}), t, clk}
}

// see has a node report a capacity, and a GiB less as allocatable.
func (n nodes) see(name string, r Revision, bytes int64) {
	n.Observe(name, r, Amounts{Memory: bytes}, Amounts{Memory: bytes - gib})
}

func (n nodes) expect(r Revision, want int64) {
	n.t.Helper()
	capacity, known := n.Capacity(r)
	if !known || capacity.Memory != want {
		n.t.Errorf("capacity of %v is %d, %t; want %d", r, capacity.Memory, known, want)
	}
	allocatable, known := n.Allocatable(r)
	if !known || allocatable.Memory != want-gib {
		n.t.Errorf("allocatable of %v is %d, %t; want %d", r, allocatable.Memory, known, want-gib)
	}
}

func TestObserved(t *testing.T) {
	t.Run("When no node of a template was observed, it should not be known", func(t *testing.T) {
		n := newNodes(t)
		n.see("a", largeRevision, 7*gib)
		for _, other := range []Revision{{Source: largeRevision.Source, ContentHash: "2"}, {Source: "other", ContentHash: "1"}} {
			if report, known := n.Capacity(other); known {
				t.Errorf("%v has %v", other, report)
			}
		}
	})
	t.Run("When a template's machines boot with something else, it should know what they have and not what they can allocate", func(t *testing.T) {
		n := newNodes(t)
		n.see("a", largeRevision, 7*gib)
		for name, other := range map[string]Revision{
			"bootstrap":  {Source: largeRevision.Source, ContentHash: "1", BootstrapHash: "2", NodeClassHash: "1"},
			"node class": {Source: largeRevision.Source, ContentHash: "1", BootstrapHash: "1", NodeClassHash: "2"},
		} {
			if report, known := n.Capacity(other); !known || report.Memory != 7*gib {
				t.Errorf("another %s: capacity %v, %t", name, report, known)
			}
			if report, known := n.Allocatable(other); known {
				t.Errorf("another %s: allocatable %v", name, report)
			}
		}
	})
	t.Run("When there is one node, it should count, down to a MiB", func(t *testing.T) {
		n := newNodes(t)
		n.see("a", largeRevision, 7*gib+5)
		n.expect(largeRevision, 7*gib)
	})
	t.Run("When one of several nodes reports less, it should not count, and when more do, it should", func(t *testing.T) {
		n := newNodes(t)
		n.see("sick", largeRevision, 2*gib)
		n.see("a", largeRevision, 7*gib)
		n.expect(largeRevision, 7*gib)
		n.see("b", largeRevision, 8*gib)
		n.expect(largeRevision, 7*gib)
		n.see("c", largeRevision, 6*gib)
		n.expect(largeRevision, 6*gib)
	})
	t.Run("When a tenth of many nodes report less, they should not count", func(t *testing.T) {
		n := newNodes(t)
		for i := range Window {
			bytes := int64(8 * gib)
			if i < 2 {
				bytes = 3 * gib
			}
			n.see(fmt.Sprint(i), largeRevision, bytes)
		}
		n.expect(largeRevision, 8*gib)
		n.see("third", largeRevision, 4*gib)
		n.see("fourth", largeRevision, 4*gib)
		n.expect(largeRevision, 8*gib)
		n.see("fifth", largeRevision, 4*gib)
		n.expect(largeRevision, 4*gib)
	})
	t.Run("When nodes go, their reports should count until as many have come", func(t *testing.T) {
		n := newNodes(t)
		for i := range Window {
			n.see(fmt.Sprint("old", i), largeRevision, 7*gib)
			n.Forget(fmt.Sprint("old", i))
		}
		n.expect(largeRevision, 7*gib)
		for i := range Window {
			n.see(fmt.Sprint("new", i), largeRevision, 8*gib)
		}
		n.expect(largeRevision, 8*gib)
		NewWithT(t).Expect(n.observed.nodes).To(HaveLen(Window))
	})
	t.Run("When a node reports another memory, it should follow", func(t *testing.T) {
		n := newNodes(t)
		n.see("a", largeRevision, 7*gib)
		n.see("a", largeRevision, 9*gib)
		n.expect(largeRevision, 9*gib)
	})
	t.Run("When a node reports no memory yet, it should teach nothing", func(t *testing.T) {
		n := newNodes(t)
		n.see("a", largeRevision, 0)
		if _, known := n.Capacity(largeRevision); known {
			t.Error("known")
		}
	})
	t.Run("When nodes report a resource later than the others, only those that do should count for it", func(t *testing.T) {
		n := newNodes(t)
		n.Observe("a", largeRevision, Amounts{Memory: gib}, Amounts{MilliCPU: 3900, Memory: gib, Pods: 58})
		n.Observe("b", largeRevision, Amounts{Memory: gib}, Amounts{MilliCPU: 3900, Memory: gib, Pods: 58, EphemeralStorage: 90 * gib})
		got, _ := n.Allocatable(largeRevision)
		if want := (Amounts{MilliCPU: 3900, Memory: gib, Pods: 58, EphemeralStorage: 90 * gib}); got.Amounts != want {
			t.Errorf("got %v, want %v", got.Amounts, want)
		}
	})
}

func TestUnconfirmed(t *testing.T) {
	unconfirmed := func(n nodes) bool { report, _ := n.Allocatable(largeRevision); return report.Unconfirmed }
	t.Run("When no second node confirms what the only one reports, it should say so after an hour and change the sequence", func(t *testing.T) {
		n := newNodes(t)
		n.see("a", largeRevision, 7*gib)
		before := n.changes.Sequence()
		n.clock.Step(ConfirmWithin - time.Second)
		if n.expire(); unconfirmed(n) || n.changes.Sequence() != before {
			t.Error("it is unconfirmed before its time")
		}
		n.clock.Step(time.Second)
		if n.expire(); !unconfirmed(n) || n.changes.Sequence() == before {
			t.Error("it isn't unconfirmed after its time")
		}
		n.expect(largeRevision, 7*gib)
	})
	t.Run("When a second node reports, it should stay confirmed", func(t *testing.T) {
		n := newNodes(t)
		n.see("a", largeRevision, 7*gib)
		n.clock.Step(2 * ConfirmWithin)
		n.expire()
		n.see("b", largeRevision, 7*gib)
		n.Forget("b")
		n.clock.Step(2 * ConfirmWithin)
		if n.expire(); unconfirmed(n) {
			t.Error("it is unconfirmed")
		}
	})
}

func TestReports(t *testing.T) {
	t.Run("When a report changes, it should change the sequence, and otherwise not", func(t *testing.T) {
		n := newNodes(t)
		var changes []int
		last := n.changes.Sequence()
		for i, do := range []func(){
			func() { n.see("a", largeRevision, 7*gib) },
			func() { n.see("a", largeRevision, 7*gib) },
			func() { n.see("b", largeRevision, 8*gib) },
			func() { n.see("c", largeRevision, 8*gib) },
			func() { n.Forget("c") },
			func() { n.see("d", largeRevision, 7*gib) },
		} {
			do()
			if now := n.changes.Sequence(); now != last {
				changes, last = append(changes, i), now
			}
		}
		NewWithT(t).Expect(fmt.Sprint(changes)).To(Equal("[0 2 5]"))
	})
	t.Run("When the first node of a revision reports, it should notify, and of later ones not", func(t *testing.T) {
		n := newNodes(t)
		told := 0
		n.observers.Add(func() { told++ })
		n.see("a", largeRevision, 7*gib)
		once := told
		n.see("b", largeRevision, 6*gib)
		if once == 0 || told != once {
			t.Errorf("told %d times of the first, %d in all", once, told)
		}
	})
	t.Run("When a template is edited again and again, it should forget the revisions that no node has", func(t *testing.T) {
		n := newNodes(t)
		n.see("stays", largeRevision, 7*gib)
		for i := range MaxRevisions + 100 {
			n.see("changes", Revision{Source: "edited", ContentHash: fmt.Sprint(i)}, 8*gib)
		}
		if len(n.capacity) > MaxRevisions || len(n.allocatable) > MaxRevisions || len(n.observed.nodes) != 2 {
			t.Errorf("%d and %d revisions and %d nodes are remembered", len(n.capacity), len(n.allocatable), len(n.observed.nodes))
		}
		n.expect(largeRevision, 7*gib)
		n.expect(Revision{Source: "edited", ContentHash: fmt.Sprint(MaxRevisions + 99)}, 8*gib)
	})
}
