// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/autonode-io/autonode/karpenter/providers/change"
)

// MaxRevisions limits the remembered revisions, and so the cost of a template that is edited often.
const MaxRevisions = 8192

// mebibyte is what memory is rounded down to: machines of one template differ by some KiB, which must not rebuild all
// instance types.
const mebibyte = 1 << 20

// Revision of a template. All its machines have the same memory.
type Revision struct {
	// Source is the template source, as v1alpha1.TemplateSourceAnnotation names it.
	Source string
	// ContentHash is the hash of the infrastructure template's content: other content may mean other memory.
	ContentHash string
}

// memory tracks the least memory of each revision's nodes. A template declares its memory in round numbers, and a
// node's kernel and firmware use some of it: a pod that requests all of it would never fit. It is safe for concurrent
// use.
type memory struct {
	mu       sync.Mutex
	observed map[Revision]*capacity
	nodes    map[string]node
	// used counts observations, to find the least recently seen revision.
	used uint64

	// changes has the source whenever a result of Of changes.
	changes *change.Log[Change]
}

type node struct {
	revision Revision
	bytes    int64
}

type capacity struct {
	// nodes counts the current nodes by their memory in bytes.
	nodes map[int64]int
	// least is their minimum, or the last node's memory.
	least int64
	used  uint64
}

func newMemory(changes *change.Log[Change]) *memory {
	return &memory{observed: map[Revision]*capacity{}, nodes: map[string]node{}, changes: changes}
}

// Of returns the least memory of a revision's nodes in bytes, rounded down to a MiB; false if none was observed.
// After the last node is gone, its memory stays until there is another node.
func (m *memory) Of(f Revision) (bytes int64, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known, ok := m.observed[f]; ok {
		return known.least, true
	}
	return 0, false
}

// Observe records a node's memory. Call it again when it changes.
func (m *memory) Observe(name string, f Revision, bytes int64) {
	bytes -= bytes % mebibyte
	if bytes <= 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	seen := node{f, bytes}
	before, ok := m.nodes[name]
	if ok && before == seen {
		return
	}
	m.nodes[name] = seen
	known, observed := m.observed[f]
	if !observed {
		m.makeRoom()
		known = &capacity{nodes: map[int64]int{}}
		m.observed[f] = known
	}
	m.used++
	known.used = m.used
	known.nodes[bytes]++
	// Remove the old entry last, so that the node's own revision doesn't lose its last node in between.
	if ok {
		m.remove(before)
	}
	m.settle(f, known)
}

// Forget records that a node is gone.
func (m *memory) Forget(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if before, ok := m.nodes[name]; ok {
		delete(m.nodes, name)
		m.remove(before)
	}
}

func (m *memory) remove(n node) {
	known, ok := m.observed[n.revision]
	if !ok {
		return
	}
	if known.nodes[n.bytes]--; known.nodes[n.bytes] <= 0 {
		delete(known.nodes, n.bytes)
	}
	m.settle(n.revision, known)
}

// settle recomputes the least memory. Without nodes, the last one's stays.
func (m *memory) settle(f Revision, known *capacity) {
	if len(known.nodes) == 0 {
		return
	}
	if least := slices.Min(slices.Collect(maps.Keys(known.nodes))); least != known.least {
		known.least = least
		m.changes.Add(Change{Source: f.Source})
	}
}

// makeRoom drops the least recently seen revision when there are too many, preferably one without nodes.
func (m *memory) makeRoom() {
	if len(m.observed) < MaxRevisions {
		return
	}
	oldest := slices.MinFunc(slices.Collect(maps.Keys(m.observed)), func(a, b Revision) int {
		x, y := m.observed[a], m.observed[b]
		return cmp.Or(cmp.Compare(min(len(x.nodes), 1), min(len(y.nodes), 1)), cmp.Compare(x.used, y.used))
	})
	delete(m.observed, oldest)
	m.changes.Add(Change{Source: oldest.Source})
}
