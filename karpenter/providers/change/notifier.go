// SPDX-License-Identifier: Apache-2.0

// Package change notifies observers of changes, keeps the last ones, and computes when the next one is due.
package change

import (
	"slices"
	"sync"
)

// Notifier is a list of observers. The zero value is empty. It is safe for concurrent use.
type Notifier struct {
	mu        sync.Mutex
	observers []func()
}

// Add adds an observer, which must not block. If Notify is called under a lock, the observer must not acquire that
// lock.
func (n *Notifier) Add(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.observers = append(n.observers, f)
}

// Notify calls the observers in the order of Add.
func (n *Notifier) Notify() {
	n.mu.Lock()
	observers := slices.Clip(n.observers)
	n.mu.Unlock()
	for _, f := range observers {
		f()
	}
}
