// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/autonode-io/autonode/karpenter/providers/change"
)

const (
	small = "TestMachineTemplate.infrastructure.cluster.x-k8s.io/small"
	large = "TestMachineTemplate.infrastructure.cluster.x-k8s.io/large"
)

func counted() bool { return true }

func newFakeReservations() (*reservations, *clocktesting.FakeClock) {
	clk := clocktesting.NewFakeClock(time.Now())
	return newReservations(clk, counted, &change.Log[Change]{}), clk
}

func uid(i int) types.UID { return types.UID(fmt.Sprint("claim-", i)) }

func TestReserve(t *testing.T) {
	t.Run("When 1,000 launches ask at once, it should promise exactly as many places as there may be machines", func(t *testing.T) {
		l, _ := newFakeReservations()
		var promised atomic.Int64
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				switch err := l.Reserve(uid(i), small, 37); {
				case err == nil:
					promised.Add(1)
					// The cache shows some of the Machines before the last launch begins.
					if rand.IntN(2) == 0 {
						l.Observe(uid(i), small)
					}
				case !errors.Is(err, ErrFull):
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if promised.Load() != 37 || l.Count(small) != 37 {
			t.Errorf("%d places were promised and %d counted; 37 are there", promised.Load(), l.Count(small))
		}
	})
	t.Run("When a launch is tried again, it should need no second place", func(t *testing.T) {
		l, _ := newFakeReservations()
		for range 3 {
			NewWithT(t).Expect(l.Reserve(uid(1), small, 1)).To(Succeed())
		}
		l.Observe(uid(1), small)
		NewWithT(t).Expect(l.Reserve(uid(1), small, 1)).To(Succeed())
		NewWithT(t).Expect(l.Count(small)).To(BeEquivalentTo(1))
	})
	t.Run("When a launch is tried again with another source, it should keep both places until its Machine shows", func(t *testing.T) {
		l, _ := newFakeReservations()
		NewWithT(t).Expect(errors.Join(l.Reserve(uid(1), small, 1), l.Reserve(uid(1), large, 1))).To(Succeed())
		NewWithT(t).Expect(l.Reserve(uid(2), small, 1)).To(MatchError(ErrFull))
		l.Observe(uid(1), large)
		NewWithT(t).Expect(l.Reserve(uid(2), small, 1)).To(Succeed())
		if l.Count(large) != 1 || l.Count(small) != 1 {
			t.Errorf("counted %d large and %d small ones", l.Count(large), l.Count(small))
		}
	})
	t.Run("When a Machine goes, it should have a place again", func(t *testing.T) {
		l, _ := newFakeReservations()
		l.Observe(uid(1), small)
		NewWithT(t).Expect(l.Reserve(uid(2), small, 1)).To(MatchError(ErrFull))
		l.Forget(uid(1))
		NewWithT(t).Expect(l.Reserve(uid(2), small, 1)).To(Succeed())
	})
	t.Run("When a launch never comes to a Machine, it should keep its place no longer than its time", func(t *testing.T) {
		l, clk := newFakeReservations()
		NewWithT(t).Expect(l.Reserve(uid(1), small, 1)).To(Succeed())
		clk.Step(PromiseTTL - time.Second)
		NewWithT(t).Expect(l.Reserve(uid(2), small, 1)).To(MatchError(ErrFull))
		clk.Step(time.Second)
		if err := l.Reserve(uid(2), small, 1); err != nil {
			t.Errorf("after its time: %v", err)
		}
	})
	t.Run("When a launch has ended without a Machine, it should give its place to another, and leave Machines counted", func(t *testing.T) {
		l, _ := newFakeReservations()
		l.Observe(uid(1), small)
		if err := l.Reserve(uid(2), small, 2); err != nil || !l.Promised(uid(2)) || l.Promised(uid(1)) {
			t.Fatal("the wrong place is promised", err)
		}
		l.Withdraw(uid(1))
		l.Withdraw(uid(2))
		if l.Promised(uid(2)) || l.Count(small) != 1 {
			t.Errorf("%d machines are counted", l.Count(small))
		}
		NewWithT(t).Expect(l.Reserve(uid(3), small, 2)).To(Succeed())
	})
	t.Run("When the Machines haven't been counted, it should promise nothing", func(t *testing.T) {
		l := newReservations(clocktesting.NewFakeClock(time.Now()), func() bool { return false }, &change.Log[Change]{})
		NewWithT(t).Expect(l.Reserve(uid(1), small, 1)).To(MatchError(ErrNotCounted))
	})
	t.Run("When a source may have no machines, it should promise nothing", func(t *testing.T) {
		l, _ := newFakeReservations()
		NewWithT(t).Expect(l.Reserve(uid(1), small, 0)).To(MatchError(ErrFull))
	})
}

func TestSequence(t *testing.T) {
	t.Run("When a source becomes full or has a place again, it should change, and otherwise not", func(t *testing.T) {
		l, clk := newFakeReservations()
		NewWithT(t).Expect(l.Full(small, 2)).To(BeFalse(), "an empty source is full")
		var changes []string
		last := l.Sequence()
		step := func(name string, do func()) {
			do()
			if now := l.Sequence(); now != last {
				changes, last = append(changes, fmt.Sprint(name, ": ", l.Full(small, 2))), now
			}
		}
		reserve := func(i int, name string) func() {
			return func() {
				NewWithT(t).Expect(l.Reserve(uid(i), name, 2)).To(Succeed())
			}
		}
		step("first", reserve(1, small))
		step("another source", reserve(9, large))
		step("second", reserve(2, small))
		step("its Machine shows", func() { l.Observe(uid(1), small) })
		step("its Machine changes", func() { l.Observe(uid(1), small) })
		step("it goes", func() { l.Forget(uid(1)) })
		step("third", reserve(3, small))
		step("promises end", func() { clk.Step(PromiseTTL) })
		want := []string{"second: true", "it goes: false", "third: true", "promises end: false"}
		NewWithT(t).Expect(fmt.Sprint(changes)).To(Equal(fmt.Sprint(want)))
	})
	t.Run("When nothing changes, it should cost no allocation", func(t *testing.T) {
		l, _ := newFakeReservations()
		l.Full(small, 2)
		NewWithT(t).Expect(testing.AllocsPerRun(100, func() { l.Sequence() })).To(BeZero())
	})
}

func TestNothingIsLeft(t *testing.T) {
	t.Run("When all machines have gone, it should remember nothing of them", func(t *testing.T) {
		l, _ := newFakeReservations()
		for i := range 100 {
			NewWithT(t).Expect(l.Reserve(uid(i), small, 1000)).To(Succeed())
			if i%2 == 0 {
				l.Observe(uid(i), small)
			}
		}
		for i := range 100 {
			l.Forget(uid(i))
		}
		NewWithT(t).Expect(len(l.machines) + len(l.promises) + len(l.sources)).To(BeZero())
	})
}
