// SPDX-License-Identifier: Apache-2.0

package nodeagent

import "time"

// backoff is the kubelet's: no delay at first, then the base, doubled up to the maximum; forgotten after a good run.
type backoff struct {
	base, maximum time.Duration
	// reset is the duration of a run after which the next failure counts as the first.
	reset time.Duration

	next time.Duration
}

// after returns how long to wait following a run that lasted so long.
func (b *backoff) after(ran time.Duration) time.Duration {
	if b.reset > 0 && ran >= b.reset {
		b.next = 0
	}
	delay := b.next
	b.next = min(max(2*b.next, b.base), b.maximum)
	return delay
}
