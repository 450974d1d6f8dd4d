// SPDX-License-Identifier: Apache-2.0

package change_test

import (
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/autonode-io/autonode/karpenter/providers/change"
)

// unread is a clock that must not be read.
type unread struct{ *clocktesting.FakePassiveClock }

func (unread) Now() time.Time { panic("the clock was read") }

func TestExpiry(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		name   string
		write  func(*change.Expiry)
		next   time.Time
		passed bool
	}{
		{name: "When nothing expires, it should never pass", write: func(*change.Expiry) {}},
		{name: "When it is in the future, it should not have passed", write: func(e *change.Expiry) { e.Set(now.Add(1)) }, next: now.Add(1)},
		{name: "When its time has come, it should have passed", write: func(e *change.Expiry) { e.Set(now) }, next: now, passed: true},
		{name: "When it is advanced, it should pass earlier", write: func(e *change.Expiry) {
			e.Advance(now.Add(time.Hour))
			e.Advance(now.Add(-time.Hour))
		}, next: now.Add(-time.Hour), passed: true},
		{name: "When it is advanced to a later time, it should stay", write: func(e *change.Expiry) {
			e.Advance(now.Add(time.Hour))
			e.Advance(now.Add(2 * time.Hour))
		}, next: now.Add(time.Hour)},
		{name: "When its time has no number of nanoseconds, it should never pass", write: func(e *change.Expiry) {
			e.Set(time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC))
		}},
		{name: "When it is set to the zero time, it should never pass", write: func(e *change.Expiry) {
			e.Set(now)
			e.Set(time.Time{})
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var expiry change.Expiry
			test.write(&expiry)
			if next, ok := expiry.Next(); ok == test.next.IsZero() || ok && !next.Equal(test.next) {
				t.Errorf("next %s, %t; want %s", next, ok, test.next)
			}
			if passed := expiry.Passed(clocktesting.NewFakePassiveClock(now)); passed != test.passed {
				t.Errorf("passed: %t", passed)
			}
		})
	}
	t.Run("When nothing expires, it should not read the clock", func(*testing.T) {
		new(change.Expiry).Passed(unread{})
	})
}
