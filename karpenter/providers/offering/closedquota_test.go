// SPDX-License-Identifier: Apache-2.0

package offering

import (
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/autonode-io/autonode/capacity"
)

var standard = capacity.QuotaName{Name: "on-demand Standard vCPUs", Counts: capacity.VCPUs}

// of is a machine with so many vCPUs, which the quota counts.
func of(name capacity.QuotaName, vCPUs int64) (Key, Quota) {
	return Key{InstanceType: fmt.Sprintf("m5-%d", vCPUs), Zone: "a", CapacityType: "on-demand"}, Quota{name, 1000 * vCPUs}
}

// quotas is an Unavailable with short forms for a test.
type quotas struct {
	*testing.T
	*Unavailable
	clk *clocktesting.FakeClock
}

func newQuotas(t *testing.T) quotas {
	clk := clocktesting.NewFakeClock(time.Date(2030, 6, 1, 12, 0, 0, 0, time.UTC))
	return quotas{t, NewUnavailable(clk), clk}
}

// fail has a machine with so many vCPUs exceed the quota, of which so many are left, or -1 if that isn't known.
func (q quotas) fail(vCPUs, left int64) ClosedQuota {
	key, needs := of(standard, vCPUs)
	if left > 0 {
		left *= 1000
	}
	return q.MarkExceeded(key, needs, left, "QuotaExceeded")
}

// open checks which of machines with so many vCPUs are available.
func (q quotas) open(want string) {
	q.Helper()
	got := ""
	for _, vCPUs := range []int64{2, 4, 8, 16} {
		if key, needs := of(standard, vCPUs); !q.Has(key, needs) {
			got += fmt.Sprint(vCPUs, " ")
		}
	}
	if got != want {
		q.Errorf("available with %svCPUs, want %s", got, want)
	}
}

const all, none = "2 4 8 16 ", ""

func TestExceeded(t *testing.T) {
	t.Run("When a machine exceeds a quota, all should be closed that need at least as much of it, and nothing else", func(t *testing.T) {
		q := newQuotas(t)
		closed := q.fail(8, -1)
		q.open("2 4 ")
		other, needs := of(capacity.QuotaName{Name: "spot Standard vCPUs", Counts: capacity.VCPUs}, 16)
		other.CapacityType = "spot"
		NewWithT(t).Expect(q.Has(other, needs)).To(BeFalse(), "another quota is closed")
		reserved, needs := of(standard, 16)
		reserved.CapacityType, reserved.Reservation = "reserved", "cr-1"
		NewWithT(t).Expect(q.Has(reserved, needs)).To(BeFalse(), "a reservation is closed")
		if got, want := closed.Description(), `quota "on-demand Standard vCPUs" is exhausted for machines with 8 vCPUs or more, until 12:03:00 UTC`; got != want {
			t.Errorf("it reports %q, want %q", got, want)
		}
		key, needs := of(standard, 16)
		if by, ok := q.ClosedBy(key, []Quota{needs}); !ok || by != closed {
			t.Errorf("closed by %v, %t", by, ok)
		}
	})
	t.Run("When the infrastructure reports what is left, it should close what needs more", func(t *testing.T) {
		q := newQuotas(t)
		q.fail(16, 4)
		q.open("2 4 ")
	})
	t.Run("When it reports that more is left than the machine needs, the machine's size should be closed nevertheless", func(t *testing.T) {
		q := newQuotas(t)
		q.fail(8, 64)
		q.open("2 4 ")
	})
	t.Run("When a smaller machine exceeds it as well, nothing should be left of it", func(t *testing.T) {
		q := newQuotas(t)
		q.fail(16, -1)
		until := q.fail(8, -1).Until
		q.open(none)
		if want := q.clk.Now().Add(BaseTTL); !until.Equal(want) {
			t.Errorf("until %s, want %s", until, want)
		}
	})
	t.Run("When several of the same size fail together, it should be one failure", func(t *testing.T) {
		q := newQuotas(t)
		q.fail(8, -1)
		q.clk.Step(time.Minute)
		if closed := q.fail(8, -1); closed.Until.Sub(q.clk.Now()) != BaseTTL-time.Minute {
			t.Errorf("%+v", closed)
		}
		q.open("2 4 ")
	})
	t.Run("When it isn't known what a quota counts, it should close all", func(t *testing.T) {
		q := newQuotas(t)
		unknown := capacity.QuotaName{Name: "on-demand m5"}
		key, needs := of(unknown, 16)
		q.MarkExceeded(key, needs, -1, "QuotaExceeded")
		if key, needs := of(unknown, 2); !q.Has(key, needs) {
			t.Error("a smaller one is available")
		}
	})
	t.Run("When a reserved machine exceeds it, it should say nothing of others", func(t *testing.T) {
		q := newQuotas(t)
		key, needs := of(standard, 8)
		key.CapacityType, key.Reservation = "reserved", "cr-1"
		q.MarkExceeded(key, needs, -1, "QuotaExceeded")
		q.open(all)
		NewWithT(t).Expect(q.Has(key)).To(BeTrue(), "it is available itself")
	})
	t.Run("When an offering in back-off exceeds a quota, it should say so, and close the quota for as long", func(t *testing.T) {
		q := newQuotas(t)
		key, _ := of(standard, 8)
		q.Mark(key, "LaunchTimeout")
		q.clk.Step(time.Minute)
		closed := q.fail(8, -1)
		q.MarkExhausted(key, "InsufficientCapacity")
		if got := q.Entries()[0]; got.Lacks != LackOfQuota || got.Reason != "QuotaExceeded" || !got.Until.Equal(closed.Until) {
			t.Errorf("%+v", got)
		}
	})
}

func TestQuotaBackOff(t *testing.T) {
	t.Run("When the back-off has passed, all should be open", func(t *testing.T) {
		q := newQuotas(t)
		q.clk.SetTime(q.fail(4, -1).Until)
		q.open(all)
		sequence := q.Sequence()
		q.fail(4, -1)
		if q.Sequence() == sequence {
			t.Error("the sequence stays")
		}
	})
	t.Run("When the offering fails again and again, it should be closed for twice as long, up to an hour", func(t *testing.T) {
		q := newQuotas(t)
		for _, minutes := range []int{3, 6, 12, 24, 48, 60, 60} {
			closed := q.fail(4, -1)
			NewWithT(t).Expect(closed.Until.Sub(q.clk.Now())).To(Equal(time.Duration(minutes) * time.Minute))
			q.open("2 ")
			q.clk.SetTime(closed.Until)
		}
	})
	t.Run("When a machine of the offering works in between, it should start again", func(t *testing.T) {
		q := newQuotas(t)
		q.clk.SetTime(q.fail(4, -1).Until)
		q.Sequence()
		q.clk.Step(time.Second)
		key, _ := of(standard, 4)
		q.Works(key, q.clk.Now())
		NewWithT(t).Expect(q.fail(4, -1).Until.Sub(q.clk.Now())).To(Equal(BaseTTL))
	})
	t.Run("When several fail for it, it should be closed for the smallest until that ends", func(t *testing.T) {
		q := newQuotas(t)
		first := q.fail(8, 7).Until
		q.clk.Step(time.Minute)
		last := q.fail(16, 15).Until
		q.open("2 4 ")
		q.clk.SetTime(first)
		q.Sequence()
		q.open("2 4 8 ")
		q.clk.SetTime(last)
		q.open(all)
	})
	t.Run("When many fail for it, it should be no streak", func(t *testing.T) {
		q := newQuotas(t)
		var keys []Key
		for vCPUs := range int64(2 * StreakThreshold) {
			key, needs := of(standard, vCPUs)
			q.MarkExceeded(key, needs, -1, "QuotaExceeded")
			keys = append(keys, key)
		}
		NewWithT(t).Expect(q.Streak(slices.Values(keys))).To(BeEmpty())
	})
}

func TestShare(t *testing.T) {
	report := func(q quotas, d time.Duration) []ClosedQuota {
		return []ClosedQuota{{QuotaName: standard, AtLeast: 8000, Until: q.clk.Now().Add(d)}}
	}
	t.Run("When another cluster reports a quota, it should be closed until that is withdrawn", func(t *testing.T) {
		q := newQuotas(t)
		q.Share(report(q, time.Minute))
		q.open("2 4 ")
		if quota := q.Quotas()[0]; !quota.Shared {
			t.Errorf("%+v", quota)
		}
		sequence := q.Sequence()
		q.Share(report(q, time.Minute))
		NewWithT(t).Expect(q.Sequence()).To(Equal(sequence), "the same report is news")
		q.Share(nil)
		q.open(all)
		NewWithT(t).Expect(q.Quotas()).To(BeEmpty())
	})
	t.Run("When its time is over, it should be open without a word", func(t *testing.T) {
		q := newQuotas(t)
		q.Share(report(q, time.Minute))
		sequence := q.Sequence()
		q.clk.Step(time.Minute)
		q.open(all)
		if q.Sequence() == sequence || len(q.Quotas()) > 0 {
			t.Error("it isn't noticed")
		}
	})
	t.Run("When another cluster reports more than this one has found, both should count, each with its origin", func(t *testing.T) {
		q := newQuotas(t)
		q.fail(4, -1)
		q.Share(report(q, time.Hour))
		q.open("2 ")
		if got := q.Quotas(); len(got) != 2 || got[0].Shared || got[0].AtLeast != 4000 || !got[1].Shared {
			t.Errorf("%+v", got)
		}
		q.clk.Step(BaseTTL)
		q.open("2 4 ")
	})
}
