// SPDX-License-Identifier: Apache-2.0

package change

import (
	"slices"
	"sync"
	"sync/atomic"
)

// logSize is how many changes a Log keeps at least. A reader that is further behind reads everything again.
const logSize = 1024

// Log returns to its readers the changes since they last read. The zero value is empty. It is safe for concurrent use.
type Log[T any] struct {
	// sequence is the number of all changes. It is written with mu held.
	sequence atomic.Uint64

	mu sync.Mutex
	// last are the last changes; the latest is at the end.
	last []T
}

// Add appends a change.
func (l *Log[T]) Add(change T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.last) == 2*logSize {
		l.last = append(l.last[:0], l.last[logSize:]...)
	}
	l.last = append(l.last, change)
	l.sequence.Add(1)
}

// Sequence is the number of changes so far. It neither locks nor allocates.
func (l *Log[T]) Sequence() uint64 { return l.sequence.Load() }

// Since returns the changes after a sequence, or false if the log no longer has all of them.
func (l *Log[T]) Since(sequence uint64) (changes []T, complete bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	behind := l.sequence.Load() - sequence
	if behind > uint64(len(l.last)) {
		return nil, false
	}
	return slices.Clone(l.last[uint64(len(l.last))-behind:]), true
}
