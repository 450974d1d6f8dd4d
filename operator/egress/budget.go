// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"cmp"
	"errors"
	"io"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/utils/clock"
)

// Budget bounds what one client of a Tunnel receives. Its zero value is the default, which a cluster of 5,000 nodes keeps to: the first list takes
// ten seconds longer, and a launch of all nodes within ten minutes sends a third of the rate.
type Budget struct {
	// Bytes is the burst, PerSecond the rate after it.
	Bytes, PerSecond int
	// Patience is how long a server may exceed its budget without a pause. After it the tunnel closes the connections and accepts none for Rest:
	// what the operator has read stays in memory.
	Patience, Rest time.Duration
}

const (
	defaultBytes     = 64 << 20
	defaultPerSecond = 4 << 20
	defaultPatience  = time.Minute
	defaultRest      = 5 * time.Minute
	// pause without a delayed read ends a time beyond the budget.
	pause = 15 * time.Second
	// chunk is the most that is read at once.
	chunk = 32 << 10
)

func (b Budget) orDefault() Budget {
	return Budget{
		Bytes: max(cmp.Or(b.Bytes, defaultBytes), chunk), PerSecond: cmp.Or(b.PerSecond, defaultPerSecond),
		Patience: cmp.Or(b.Patience, defaultPatience), Rest: cmp.Or(b.Rest, defaultRest),
	}
}

// State is how a client's use compares to its Budget.
type State int

const (
	// Within is a client without a delay.
	Within State = iota
	// Slowed is a client beyond its budget, which receives at the budget's rate.
	Slowed
	// Resting is a client that was beyond its budget for longer than Patience, and receives nothing.
	Resting
)

var errResting = errors.New("the server used up its budget")

// allowance is what one client has left of its budget. It outlives connections: a new one gets no new budget.
type allowance struct {
	budget  Budget
	limiter *rate.Limiter
	clock   clock.Clock

	mu           sync.Mutex
	since, last  time.Time // the first delayed read without a pause, and the end of the last one's delay
	restingUntil time.Time
}

func newAllowance(budget Budget, clk clock.Clock) *allowance {
	return &allowance{budget: budget, limiter: rate.NewLimiter(rate.Limit(budget.PerSecond), budget.Bytes), clock: clk}
}

// take accounts for n bytes that were received. It returns how long to wait before more is read.
func (a *allowance) take(n int) (time.Duration, error) {
	now := a.clock.Now()
	wait := a.limiter.ReserveN(now, n).DelayFrom(now)
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.Before(a.restingUntil) {
		return 0, errResting
	}
	if wait == 0 {
		return 0, nil
	}
	if now.Sub(a.last) > pause {
		a.since = now
	}
	a.last = now.Add(wait)
	if now.Sub(a.since) > a.budget.Patience {
		a.restingUntil = now.Add(a.budget.Rest)
		return 0, errResting
	}
	return wait, nil
}

func (a *allowance) state() State {
	now := a.clock.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case now.Before(a.restingUntil):
		return Resting
	case !a.last.IsZero() && now.Sub(a.last) <= pause:
		return Slowed
	}
	return Within
}

// metered reads at the rate of an allowance.
type metered struct {
	ended     <-chan struct{}
	r         io.Reader
	allowance *allowance
}

func (m metered) Read(p []byte) (int, error) {
	n, err := m.r.Read(p[:min(len(p), chunk)])
	if n == 0 {
		return n, err
	}
	wait, refused := m.allowance.take(n)
	if refused != nil {
		return 0, refused
	}
	if wait == 0 {
		return n, err
	}
	timer := m.allowance.clock.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C():
		return n, err
	case <-m.ended:
		return 0, io.ErrClosedPipe
	}
}
