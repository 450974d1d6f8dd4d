// SPDX-License-Identifier: Apache-2.0

package offering

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/autonode-io/autonode/capacity"
)

var standard = QuotaName{"on-demand Standard vCPUs", capacity.VCPUs}

// of is a machine with so many vCPUs, which the quota counts.
func of(name QuotaName, vCPUs int64) (Key, Quota) {
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
	return q.MarkExceeded(key, Exceeded{Quota: needs, Left: left, Family: "m5", Reason: "QuotaExceeded"})
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

func (q quotas) admit(nodeClaim string, vCPUs int64) bool {
	key, needs := of(standard, vCPUs)
	return q.Admit(nodeClaim, key, []Quota{needs})
}

const all, none = "2 4 8 16 ", ""

func TestExceeded(t *testing.T) {
	t.Run("When a machine exceeds a quota, all should be closed that need at least as much of it, and nothing else", func(t *testing.T) {
		q := newQuotas(t)
		closed := q.fail(8, -1)
		q.open("2 4 ")
		other, needs := of(QuotaName{"spot Standard vCPUs", capacity.VCPUs}, 16)
		other.CapacityType = "spot"
		NewWithT(t).Expect(q.Has(other, needs)).To(BeFalse(), "another quota is closed")
		reserved, needs := of(standard, 16)
		reserved.CapacityType, reserved.Reservation = "reserved", "cr-1"
		NewWithT(t).Expect(q.Has(reserved, needs)).To(BeFalse(), "a reservation is closed")
		if got, want := closed.Description(), `quota "on-demand Standard vCPUs" is exhausted for machines with 8 vCPUs or more, until one launch probes it at 12:03:00 UTC`; got != want {
			t.Errorf("it reports %q, want %q", got, want)
		}
		key, needs := of(standard, 16)
		if by, ok := q.ClosedBy(key, []Quota{needs}); !ok || by.Failed.InstanceType != "m5-8" {
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
		if closed := q.fail(8, -1); closed.Failures != 1 || closed.Until.Sub(q.clk.Now()) != BaseTTL-time.Minute {
			t.Errorf("%+v", closed)
		}
		q.open("2 4 ")
	})
	t.Run("When it isn't known what a quota counts, it should close all", func(t *testing.T) {
		q := newQuotas(t)
		unknown := QuotaName{Name: "on-demand m5"}
		key, needs := of(unknown, 16)
		q.MarkExceeded(key, Exceeded{Quota: needs, Left: -1})
		if key, needs := of(unknown, 2); !q.Has(key, needs) {
			t.Error("a smaller one is available")
		}
	})
	t.Run("When a reserved machine exceeds it, it should say nothing of others", func(t *testing.T) {
		q := newQuotas(t)
		key, needs := of(standard, 8)
		key.CapacityType, key.Reservation = "reserved", "cr-1"
		q.MarkExceeded(key, Exceeded{Quota: needs, Left: -1})
		q.open(all)
		NewWithT(t).Expect(q.Has(key)).To(BeTrue(), "it is available itself")
	})
	t.Run("When an offering in back-off exceeds a quota, it should be closed for the longer of both, and say so", func(t *testing.T) {
		q := newQuotas(t)
		key, _ := of(standard, 8)
		q.Mark(key, "LaunchTimeout")
		q.clk.Step(time.Minute)
		closed := q.fail(8, -1)
		q.MarkExhausted(key, "m5", "InsufficientCapacity")
		if got := q.Entries()[0]; got.Lacks != LackOfQuota || got.Reason != "QuotaExceeded" || !got.Until.Equal(closed.Until) {
			t.Errorf("%+v", got)
		}
	})
}

func TestProbe(t *testing.T) {
	// closed is a quota whose back-off has just passed.
	closed := func(t *testing.T) quotas {
		q := newQuotas(t)
		q.clk.SetTime(q.fail(4, -1).Until)
		return q
	}
	t.Run("When the back-off has passed, one launch should probe the quota, and the others wait", func(t *testing.T) {
		q := closed(t)
		q.open(all)
		sequence := q.Sequence()
		if !q.admit("first", 4) || q.admit("second", 4) || q.admit("second", 16) || !q.admit("first", 4) {
			t.Error("not one launch is admitted")
		}
		NewWithT(t).Expect(q.admit("small", 2)).To(BeTrue(), "what was never closed waits")
		q.open("2 ")
		if q.Sequence() == sequence {
			t.Error("the sequence stays")
		}
		quota := q.Quotas()[0]
		if got, want := quota.Description(), `quota "on-demand Standard vCPUs" is exhausted for machines with 4 vCPUs or more; NodeClaim first probes it, and the others wait`; got != want {
			t.Errorf("it reports %q, want %q", got, want)
		}
	})
	t.Run("When the probe's machine comes into being, the quota should be open to all, and earlier failures not count", func(t *testing.T) {
		q := closed(t)
		q.admit("first", 4)
		q.Launched("another")
		q.open("2 ")
		q.Launched("first")
		q.open(all)
		if closed := q.fail(4, -1); closed.Failures != 1 {
			t.Errorf("%+v", closed)
		}
	})
	t.Run("When the probe fails for the quota, it should be closed for twice as long, up to an hour", func(t *testing.T) {
		q := closed(t)
		for _, minutes := range []int{6, 12, 24, 48, 60, 60} {
			q.admit("next", 4)
			closed := q.fail(4, -1)
			NewWithT(t).Expect(closed.Until.Sub(q.clk.Now())).To(Equal(time.Duration(minutes) * time.Minute))
			q.open("2 ")
			q.clk.SetTime(closed.Until)
		}
	})
	t.Run("When the probe ends for another reason, the next launch should be one", func(t *testing.T) {
		q := closed(t)
		q.admit("first", 4)
		q.Withdraw("first")
		q.open(all)
		if !q.admit("second", 4) || q.admit("third", 4) {
			t.Error("not one launch is admitted")
		}
	})
	t.Run("When nothing is heard of a probe, another launch should be one after a while", func(t *testing.T) {
		q := closed(t)
		q.admit("lost", 4)
		q.clk.Step(ProbeTTL)
		q.open(all)
		NewWithT(t).Expect(q.admit("second", 4)).To(BeTrue(), "it waits for ever")
	})
	t.Run("When nothing needs the quota for an hour, it should be forgotten", func(t *testing.T) {
		q := closed(t)
		q.clk.Step(MaxTTL + time.Second)
		q.Sequence()
		if got := q.Quotas(); len(got) > 0 || !q.admit("first", 4) || !q.admit("second", 4) {
			t.Errorf("%v", got)
		}
	})
	t.Run("When as much has been returned as it is closed for, a launch should probe it early", func(t *testing.T) {
		q := newQuotas(t)
		q.fail(4, -1)
		_, two := of(standard, 2)
		q.Freed([]Quota{two})
		q.open("2 ")
		q.Freed([]Quota{two})
		q.open(all)
		if !q.admit("first", 4) || q.admit("second", 4) {
			t.Error("not one launch is admitted")
		}
	})
}

func TestShare(t *testing.T) {
	report := func(q quotas, d time.Duration) []ClosedQuota {
		return []ClosedQuota{{QuotaName: standard, AtLeast: 8000, Until: q.clk.Now().Add(d)}}
	}
	t.Run("When another cluster reports a quota, it should be closed until that is withdrawn, and then probed", func(t *testing.T) {
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
		if !q.admit("first", 8) || q.admit("second", 8) {
			t.Error("not one launch is admitted")
		}
		q.Launched("first")
		if got := q.Quotas(); len(got) > 0 {
			t.Errorf("%v", got)
		}
	})
	t.Run("When its time is over, it should be probed without a word", func(t *testing.T) {
		q := newQuotas(t)
		reported := report(q, time.Minute)
		q.Share(reported)
		q.clk.Step(time.Minute)
		q.open(all)
		q.Share(reported)
		if !q.admit("first", 8) || q.admit("second", 8) {
			t.Error("not one launch is admitted")
		}
	})
	t.Run("When the probe of a reported quota fails, it should be this cluster's finding", func(t *testing.T) {
		q := newQuotas(t)
		q.Share(report(q, time.Minute))
		q.clk.Step(time.Minute)
		q.admit("first", 8)
		q.fail(8, -1)
		if got := q.Quotas(); len(got) != 1 || got[0].Shared || got[0].Failures != 1 {
			t.Errorf("%+v", got)
		}
		q.open("2 4 ")
	})
	t.Run("When a report reports less than this cluster has found, both should count", func(t *testing.T) {
		q := newQuotas(t)
		q.fail(4, -1)
		q.Share(report(q, time.Hour))
		q.open("2 ")
		q.clk.Step(BaseTTL)
		q.open("2 4 ")
	})
	t.Run("When a cluster reports any number of quotas, it should remember some", func(t *testing.T) {
		q := newQuotas(t)
		var many []ClosedQuota
		for i := range 2 * maxQuotas {
			many = append(many, ClosedQuota{QuotaName: QuotaName{Name: fmt.Sprint(i)}, Until: q.clk.Now().Add(time.Hour)})
		}
		q.Share(many)
		NewWithT(t).Expect(q.Quotas()).To(HaveLen(maxQuotas))
	})
}
