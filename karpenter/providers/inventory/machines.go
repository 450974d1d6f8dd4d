// SPDX-License-Identifier: Apache-2.0

// Package inventory knows what the machines that there are were made as. A node whose instance type vanishes from what Karpenter
// is told is replaced, so that what can't be made or read now still has to be told as long as a machine has it.
package inventory

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// Form is what a machine was made as.
type Form struct {
	// Source is the shape source, as v1alpha1.ShapeSourceAnnotation names it; empty if the machine doesn't say.
	Source string
	// Key is the offering that was chosen.
	offering.Key
	// Price in US dollars an hour that it was chosen for; 0 if the machine doesn't say.
	Price float64
}

// Compare orders forms by offering, source and price.
func (f Form) Compare(other Form) int {
	return cmp.Or(f.Key.Compare(other.Key), cmp.Compare(f.Source, other.Source), cmp.Compare(f.Price, other.Price))
}

// Machines counts the machines of each form. It is safe for concurrent use.
type Machines struct {
	counted func() bool
	// complete remembers that counted has said yes.
	complete atomic.Bool
	// done is closed once counted says yes; nil where nothing tells.
	done <-chan struct{}

	mu sync.Mutex
	// forms of the machines by NodeClaim.
	forms  map[types.UID]Form
	counts map[Form]int

	sequence atomic.Uint64
}

// New returns one without machines. It is complete once counted says so.
func New(counted func() bool) *Machines {
	return &Machines{counted: counted, forms: map[types.UID]Form{}, counts: map[Form]int{}}
}

// Counted says whether every machine that there was at the start has been told to Observe. It neither locks nor allocates
// from then on.
func (m *Machines) Counted() bool {
	if m.complete.Load() {
		return true
	}
	if !m.counted() {
		return false
	}
	m.complete.Store(true)
	return true
}

// ErrNotCounted says that the machines there are haven't been counted yet.
var ErrNotCounted = errors.New("the Machines haven't been counted yet")

// Wait until the machines have been counted, for at most as long as timeout. The error is ErrNotCounted, or that of ctx.
func (m *Machines) Wait(ctx context.Context, timeout time.Duration) error {
	if m.Counted() {
		return nil
	}
	if m.done == nil {
		return ErrNotCounted
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-m.done:
		return nil
	case <-timer.C:
		return ErrNotCounted
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Observe says that a NodeClaim has a machine, and what that was made as.
func (m *Machines) Observe(nodeClaim types.UID, form Form) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before, ok := m.forms[nodeClaim]
	if ok && before == form {
		return
	}
	m.forms[nodeClaim] = form
	if m.counts[form]++; m.counts[form] == 1 {
		m.sequence.Add(1)
	}
	if ok {
		m.remove(before)
	}
}

// Forget says that a NodeClaim has no machine any more.
func (m *Machines) Forget(nodeClaim types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if before, ok := m.forms[nodeClaim]; ok {
		delete(m.forms, nodeClaim)
		m.remove(before)
	}
}

// Forms that at least one machine has, in order.
func (m *Machines) Forms() []Form {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(maps.Keys(m.counts), Form.Compare)
}

// Sequence changes whenever the answer of Forms has. It neither locks nor allocates.
func (m *Machines) Sequence() uint64 { return m.sequence.Load() }

func (m *Machines) remove(form Form) {
	if m.counts[form]--; m.counts[form] <= 0 {
		delete(m.counts, form)
		m.sequence.Add(1)
	}
}
