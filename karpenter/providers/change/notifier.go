// SPDX-License-Identifier: Apache-2.0

// Package change passes on that something has changed, to whoever asked to be told.
package change

import (
	"slices"
	"sync"
)

// Notifier is a list of functions to call. The zero value is empty. It is safe for concurrent use.
type Notifier struct {
	mu        sync.Mutex
	observers []func()
}

// Add adds a function to call. It must not block. Where Notify is called under a lock, it must not ask for what that guards.
func (n *Notifier) Add(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.observers = append(n.observers, f)
}

// Notify calls each function, in the order in which they were added.
func (n *Notifier) Notify() {
	n.mu.Lock()
	observers := slices.Clip(n.observers)
	n.mu.Unlock()
	for _, f := range observers {
		f()
	}
}
