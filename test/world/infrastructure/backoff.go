// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"math"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// backOff keeps a kubelet that was refused from asking again at once. It is that of client-go's certificate manager, by which a real
// kubelet makes requests: 2, 4, 8 and 16 seconds, then 32 again and again.
type backOff struct {
	backoff wait.Backoff
	// until is the time of the kubelet's next request, and why it waits.
	until time.Time
	why   string
}

func newBackOff() backOff {
	return backOff{backoff: wait.Backoff{Duration: 2 * time.Second, Factor: 2, Jitter: 0.1, Steps: math.MaxInt, Cap: 32 * time.Second}}
}

// refused notes that the kubelet was refused, and returns how long it has to wait.
func (b *backOff) refused(now time.Time, why string) time.Duration {
	delay := b.backoff.Step()
	b.until, b.why = now.Add(delay), why
	return delay
}

// left is the kubelet's remaining wait.
func (b *backOff) left(now time.Time) time.Duration { return max(0, b.until.Sub(now)) }
