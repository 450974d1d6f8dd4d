// SPDX-License-Identifier: Apache-2.0

package outage

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestBreaker(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)

	t.Run("When a guest goes on not answering, it should stay open for longer each time, up to the limit", func(t *testing.T) {
		g := NewWithT(t)
		b, want := Breaker{}, MinBackoff
		g.Expect(b.Closed()).To(BeTrue())
		for range 10 {
			g.Expect(b.Trip(now)).To(Equal(want))
			g.Expect(b.Remaining(now)).To(Equal(want))
			now = now.Add(want)
			g.Expect(b.Remaining(now)).To(BeZero())
			g.Expect(b.Closed()).To(BeFalse(), "it is half-open")
			want = min(2*want, MaxBackoff)
		}
	})

	t.Run("When another call has shown that a guest doesn't answer, it should stay open as long as that one's, and its own back-off should start", func(t *testing.T) {
		g := NewWithT(t)
		b := Breaker{}
		b.Hold(now, time.Minute)
		b.Hold(now, MinBackoff)
		g.Expect(b.Remaining(now)).To(Equal(time.Minute), "a shorter time changes nothing")
		g.Expect(b.Trip(now.Add(time.Minute))).To(Equal(2 * MinBackoff))
	})
}
