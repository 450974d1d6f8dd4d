// SPDX-License-Identifier: Apache-2.0

package outage

import (
	"math"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// MinBackoff is how long a guest is left alone after a call that it didn't answer. It doubles up to MaxBackoff.
const (
	MinBackoff = 5 * time.Second
	MaxBackoff = 5 * time.Minute
)

// Breaker is the circuit breaker of one guest. Open, it lets no call through. When its back-off ends it is half-open:
// one call shows whether the guest answers, which either resets the breaker or trips it for longer. The zero value is
// closed. A HostedCluster's reconciliation and its certificate requests have one each: a webhook in a guest can keep
// the API server from answering the one and not the other.
type Breaker struct {
	until   time.Time
	backoff *wait.Backoff // nil while closed
}

// Trip opens the breaker after a call that the guest didn't answer, and returns for how long.
func (b *Breaker) Trip(now time.Time) time.Duration {
	if b.backoff == nil {
		b.backoff = &wait.Backoff{Duration: MinBackoff, Factor: 2, Cap: MaxBackoff, Steps: math.MaxInt}
	}
	backoff := b.backoff.Step()
	b.until = now.Add(backoff)
	return backoff
}

// Hold opens the breaker for at least that long, because of another call's result.
func (b *Breaker) Hold(now time.Time, least time.Duration) {
	if b.Closed() {
		b.Trip(now)
	}
	if until := now.Add(least); until.After(b.until) {
		b.until = until
	}
}

// Remaining is for how long the breaker stays open; zero if it is half-open or closed.
func (b *Breaker) Remaining(now time.Time) time.Duration { return max(b.until.Sub(now), 0) }

// Closed reports whether the guest has answered since the breaker was tripped.
func (b *Breaker) Closed() bool { return b.backoff == nil }
