// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// MaxRevisions bounds how many revisions are remembered, and so what a template that is edited all day can cost.
const MaxRevisions = 8192

// mebibyte is what memory is rounded down to: machines of one form differ by some KiB, and that is no reason to build all
// instance types anew.
const mebibyte = 1 << 20

// Revision of a template: what machines with the same memory are alike in.
type Revision struct {
	// Source is the shape source, as v1alpha1.ShapeSourceAnnotation names it.
	Source string
	// ContentHash is of the infrastructure template's content: another content may have another memory.
	ContentHash string
}

// memory remembers the least memory that the nodes of each revision have. A template declares its memory in round numbers, and a
// node's kernel and firmware keep some of that: pods that were promised all of it would never fit. It is safe for concurrent use.
type memory struct {
	mu    sync.Mutex
	forms map[Revision]*form
	nodes map[string]node
	// used counts observations, to find the form that was seen least lately.
	used uint64

	sequence *atomic.Uint64
}

type node struct {
	form  Revision
	bytes int64
}

type form struct {
	// nodes counts the nodes there are by their memory in bytes.
	nodes map[int64]int
	// least is the least of them, or what the last one had.
	least int64
	used  uint64
}

func newMemory(sequence *atomic.Uint64) *memory {
	return &memory{forms: map[Revision]*form{}, nodes: map[string]node{}, sequence: sequence}
}

// Of a form is the least memory in bytes that a node of it has, rounded down to a MiB, or false while none was seen. When the last
// node goes, what it had stays true until there is another one.
func (m *memory) Of(f Revision) (bytes int64, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known, ok := m.forms[f]; ok {
		return known.least, true
	}
	return 0, false
}

// Observe says how much memory a node reports. It is called again whenever that changes.
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
	known, learned := m.forms[f]
	if !learned {
		m.makeRoom()
		known = &form{nodes: map[int64]int{}}
		m.forms[f] = known
	}
	m.used++
	known.used = m.used
	known.nodes[bytes]++
	// Only now, so that the node's own form doesn't lose its last node in between.
	if ok {
		m.remove(before)
	}
	m.settle(known)
}

// Forget says that a node has gone.
func (m *memory) Forget(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if before, ok := m.nodes[name]; ok {
		delete(m.nodes, name)
		m.remove(before)
	}
}

// Sequence changes whenever an answer of Of has. It neither locks nor allocates.
func (m *memory) Sequence() uint64 { return m.sequence.Load() }

func (m *memory) remove(n node) {
	known, ok := m.forms[n.form]
	if !ok {
		return
	}
	if known.nodes[n.bytes]--; known.nodes[n.bytes] <= 0 {
		delete(known.nodes, n.bytes)
	}
	m.settle(known)
}

// settle finds the least memory anew. Where no node is left, the last one's stays.
func (m *memory) settle(known *form) {
	if len(known.nodes) == 0 {
		return
	}
	if least := slices.Min(slices.Collect(maps.Keys(known.nodes))); least != known.least {
		known.least = least
		m.sequence.Add(1)
	}
}

// makeRoom forgets the form that was seen least lately when there are too many, if possible one without nodes.
func (m *memory) makeRoom() {
	if len(m.forms) < MaxRevisions {
		return
	}
	oldest := slices.MinFunc(slices.Collect(maps.Keys(m.forms)), func(a, b Revision) int {
		x, y := m.forms[a], m.forms[b]
		return cmp.Or(cmp.Compare(min(len(x.nodes), 1), min(len(y.nodes), 1)), cmp.Compare(x.used, y.used))
	})
	delete(m.forms, oldest)
	m.sequence.Add(1)
}
