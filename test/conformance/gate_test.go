// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/time/rate"
)

func TestGate(t *testing.T) {
	// asked has the machine be as busy as that, each time that is asked; the last is for ever.
	asked := func(timeout time.Duration, percents ...float64) (*gate, *int) {
		times := 0
		return &gate{starts: rate.NewLimiter(rate.Inf, 1), timeout: timeout, waiting: func() (float64, error) {
			percent := percents[min(times, len(percents)-1)]
			times++
			return percent, nil
		}}, &times
	}

	t.Run("When the machine has caught up, it should let a spec begin", func(t *testing.T) {
		g := NewWithT(t)
		free, times := asked(time.Hour, busy-1)
		g.Expect(free.pass(t.Context())).To(Succeed())
		g.Expect(*times).To(Equal(1))
	})
	t.Run("When the machine is busy, it should wait until it isn't", func(t *testing.T) {
		g := NewWithT(t)
		overloaded, times := asked(time.Hour, 100, busy, 40)
		g.Expect(overloaded.pass(t.Context())).To(Succeed())
		g.Expect(*times).To(Equal(3))
	})
	t.Run("When the machine stays busy, it should let a spec begin all the same after a while", func(t *testing.T) {
		g := NewWithT(t)
		overloaded, _ := asked(20*time.Millisecond, 100)
		began := time.Now()
		g.Expect(overloaded.pass(t.Context())).To(Succeed())
		g.Expect(time.Since(began)).To(BeNumerically(">=", 20*time.Millisecond))
	})
	t.Run("When the kernel reports no pressure, it should let a spec begin", func(t *testing.T) {
		g := NewWithT(t)
		blind := &gate{starts: rate.NewLimiter(rate.Inf, 1), timeout: time.Hour, waiting: func() (float64, error) { return 0, errors.New("no such file") }}
		g.Expect(blind.pass(t.Context())).To(Succeed())
	})
	t.Run("When the run ends meanwhile, it should say so", func(t *testing.T) {
		g := NewWithT(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		overloaded, _ := asked(time.Hour, 100)
		g.Expect(overloaded.pass(ctx)).To(MatchError(context.Canceled))
	})
}
