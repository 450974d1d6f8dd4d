// SPDX-License-Identifier: Apache-2.0

package change

import (
	"math"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// last is the latest time that has a number of nanoseconds since the epoch, in the year 2262.
var last = time.Unix(0, math.MaxInt64)

// Expiry is when a result next changes without a call. The zero value is never. Whoever writes it holds the lock of that result;
// reading takes no lock, and reads the clock only if there is an expiry: GetInstanceTypes reads several of them in each call.
type Expiry struct {
	// at is in nanoseconds since the epoch; 0 is never.
	at atomic.Int64
}

// Earlier returns the earlier of two times, of which the zero time is never.
func Earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Set replaces the expiry; the zero time is never.
func (e *Expiry) Set(at time.Time) {
	if at.IsZero() || at.After(last) {
		e.at.Store(0)
		return
	}
	e.at.Store(at.UnixNano())
}

// Advance replaces the expiry if this one is earlier.
func (e *Expiry) Advance(at time.Time) {
	next, _ := e.Next()
	e.Set(Earlier(next, at))
}

// Next returns the expiry; false if it is never.
func (e *Expiry) Next() (time.Time, bool) {
	at := e.at.Load()
	if at == 0 {
		return time.Time{}, false
	}
	return time.Unix(0, at), true
}

// Passed reports whether the expiry has passed by a clock.
func (e *Expiry) Passed(clk clock.PassiveClock) bool {
	return e.at.Load() != 0 && e.PassedAt(clk.Now())
}

// PassedAt reports whether the expiry has passed at a time.
func (e *Expiry) PassedAt(now time.Time) bool {
	next, ok := e.Next()
	return ok && !now.Before(next)
}
