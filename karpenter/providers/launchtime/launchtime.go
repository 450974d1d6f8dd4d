// SPDX-License-Identifier: Apache-2.0

// Package launchtime reports how long the machines of a template usually take until they have a provider ID, and after how long
// a launch counts as slow. It reads no clock.
package launchtime

import (
	"slices"
	"sync"
	"time"

	"github.com/autonode-io/autonode/internal/lru"
)

const (
	// Window is the number of a template's machines that count: the last ones, whether they still exist or not.
	Window = 10
	// MaxTemplates limits the remembered templates.
	MaxTemplates = 8192

	// slowFactor times the usual time is slow.
	slowFactor = 3
	// Machines that usually take longer than MaxSlow, as on bare metal, are slow after half as much again.
	leastFactor = 1.5
)

// MinSlow and MaxSlow bound that time. MaxSlow also holds for a template without an observed machine. It is the --sync-period of most
// infrastructure providers, so a failed task has been reported by then.
const (
	MinSlow = time.Minute
	MaxSlow = 10 * time.Minute
)

// Times are the launch times of templates. They are safe for concurrent use.
type Times struct {
	mu        sync.Mutex
	templates lru.Cache[string, *launches]
}

// launches of a template, the oldest first.
type launches struct{ last []launch }

type launch struct {
	began time.Time
	took  time.Duration
}

// New returns no times.
func New() *Times { return &Times{templates: lru.New[string, *launches](MaxTemplates)} }

// Observe records that a template's machine got its provider ID. Call it once for each machine, in any order.
func (t *Times) Observe(template string, began time.Time, took time.Duration) {
	if took < 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	known, ok := t.templates.Get(template)
	if !ok {
		known = &launches{}
		t.templates.Add(template, known)
	}
	at, _ := slices.BinarySearchFunc(known.last, began, func(l launch, began time.Time) int { return l.began.Compare(began) })
	known.last = slices.Insert(known.last, at, launch{began, took})
	known.last = known.last[max(0, len(known.last)-Window):]
}

// Usual is the median of a template's last launch times; false if none was observed.
func (t *Times) Usual(template string) (time.Duration, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	known, ok := t.templates.Get(template)
	if !ok {
		return 0, false
	}
	took := make([]time.Duration, 0, Window)
	for _, l := range known.last {
		took = append(took, l.took)
	}
	slices.Sort(took)
	return took[len(took)/2], true
}

// Slow returns after how long a launch of a template counts as slow.
func (t *Times) Slow(template string) time.Duration {
	usual, known := t.Usual(template)
	if !known {
		return MaxSlow
	}
	least := time.Duration(leastFactor * float64(usual))
	return max(MinSlow, min(slowFactor*usual, MaxSlow), least)
}
