// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestPace(t *testing.T) {
	// full reports whether no slot is free.
	full := func(p *pace) bool {
		over, cancel := context.WithCancel(t.Context())
		cancel()
		for range 20 { // select takes any case that is ready
			if end, err := p.begin(over); err == nil {
				end()
				return false
			}
		}
		return true
	}
	begin := func(g Gomega, p *pace) (end func()) {
		end, err := p.begin(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		return end
	}

	t.Run("When as many run as may, the next should wait until one ends", func(t *testing.T) {
		g := NewWithT(t)
		p := newPace(2, clocktesting.NewFakeClock(time.Now()))
		first := begin(g, p)
		g.Expect(full(p)).To(BeFalse())
		begin(g, p)
		g.Expect(full(p)).To(BeTrue())
		first()
		g.Expect(full(p)).To(BeFalse())
	})

	t.Run("When one hangs, it should hold up the next no longer than its limit, and free its slot once", func(t *testing.T) {
		g := NewWithT(t)
		clock := clocktesting.NewFakeClock(time.Now())
		p := newPace(1, clock)
		hanging := begin(g, p)
		clock.Step(paceLimit - time.Millisecond)
		g.Expect(full(p)).To(BeTrue())
		clock.Step(time.Millisecond)
		g.Expect(full(p)).To(BeFalse(), "the limit has passed")
		next := begin(g, p)
		hanging()
		g.Expect(full(p)).To(BeTrue(), "the slot is the next one's")
		next()
		g.Expect(full(p)).To(BeFalse())
		g.Expect(clock.HasWaiters()).To(BeFalse(), "an ended one's timer runs")
	})
}
