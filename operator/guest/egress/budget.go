// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"cmp"
	"errors"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/utils/clock"
)

// Budget limits the bytes that one client of a Dialer receives. Its zero value is the default. A cluster of 5,000 nodes stays
// within it: the first list takes twenty seconds longer, and a launch of all nodes within ten minutes sends a third of the
// rate.
type Budget struct {
	// Bytes is the burst, PerSecond the rate after it.
	Bytes, PerSecond int
	// Grace is the time for which a server may exceed its budget without a pause. Then the Dialer closes the
	// connections and makes none for Backoff. The operator's caches keep their objects.
	Grace, Backoff time.Duration
}

const (
	defaultBytes     = 64 << 20
	defaultPerSecond = 4 << 20
	defaultGrace     = time.Minute
	// DefaultBackoff is the default of Budget.Backoff.
	DefaultBackoff = 5 * time.Minute
	// pause without a delayed read ends a period beyond the budget.
	pause = 15 * time.Second
	// chunk is the maximum size of one read.
	chunk = 32 << 10

	// connectionCost, readCost and writeCost are the bytes that a connection, a read and a write count for at least: their bytes don't show
	// their CPU time. A handshake signs with the client's key. A server sends tiny packets, and HTTP/2 answers each PING with a write.
	connectionCost = 1 << 20
	readCost       = 256
	writeCost      = 1 << 10
)

func (b Budget) orDefault() Budget {
	return Budget{
		Bytes: max(cmp.Or(b.Bytes, defaultBytes), chunk), PerSecond: cmp.Or(b.PerSecond, defaultPerSecond),
		Grace: cmp.Or(b.Grace, defaultGrace), Backoff: cmp.Or(b.Backoff, DefaultBackoff),
	}
}

// State compares a client's use with its Budget.
type State int

const (
	// Within: no read of the client is delayed.
	Within State = iota
	// Slowed: the client is beyond its budget, and receives at the budget's rate.
	Slowed
	// BackOff: the client was beyond its budget for longer than Grace. It is in back-off and receives nothing.
	BackOff
)

var errBackoff = errors.New("the server used up its budget")

// allowance is the rest of one client's budget. It outlives connections: a new connection gets no new budget.
type allowance struct {
	budget  Budget
	limiter *rate.Limiter
	clock   clock.Clock

	mu           sync.Mutex
	since, last  time.Time // the first delayed read without a pause, and the end of the last one's delay
	backoffUntil time.Time
}

func newAllowance(budget Budget, clk clock.Clock) *allowance {
	return &allowance{budget: budget, limiter: rate.NewLimiter(rate.Limit(budget.PerSecond), budget.Bytes), clock: clk}
}

// take accounts for n received bytes, or for work that costs as much. It returns the delay of the next read.
func (a *allowance) take(n int) (time.Duration, error) {
	now := a.clock.Now()
	wait := a.limiter.ReserveN(now, min(n, a.budget.Bytes)).DelayFrom(now)
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.Before(a.backoffUntil) {
		return 0, errBackoff
	}
	if wait == 0 {
		return 0, nil
	}
	if now.Sub(a.last) > pause {
		a.since = now
	}
	a.last = now.Add(wait)
	if now.Sub(a.since) > a.budget.Grace {
		a.backoffUntil = now.Add(a.budget.Backoff)
		return 0, errBackoff
	}
	return wait, nil
}

func (a *allowance) state() State {
	now := a.clock.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case now.Before(a.backoffUntil):
		return BackOff
	case !a.last.IsZero() && now.Sub(a.last) <= pause:
		return Slowed
	}
	return Within
}

// metered is a connection that receives at an allowance's rate, and closes itself beyond the allowance.
type metered struct {
	net.Conn
	allowance *allowance
	once      sync.Once
	closed    chan struct{}
}

// Read implements net.Conn.
func (m *metered) Read(p []byte) (int, error) {
	n, err := m.Conn.Read(p[:min(len(p), chunk)])
	if n == 0 {
		return n, err
	}
	wait, refused := m.allowance.take(max(n, readCost))
	if refused != nil {
		_ = m.Close()
		return 0, refused
	}
	if wait == 0 {
		return n, err
	}
	select {
	case <-m.allowance.clock.After(wait):
		return n, err
	case <-m.closed:
		return 0, net.ErrClosed
	}
}

// Write implements net.Conn. It delays the next Read.
func (m *metered) Write(p []byte) (int, error) {
	if _, err := m.allowance.take(writeCost); err != nil {
		_ = m.Close()
		return 0, err
	}
	return m.Conn.Write(p)
}

// Close implements net.Conn. It ends a delayed Read.
func (m *metered) Close() error {
	m.once.Do(func() { close(m.closed) })
	return m.Conn.Close()
}
