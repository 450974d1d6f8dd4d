// SPDX-License-Identifier: Apache-2.0

package division

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const pool = "reservation/cr-1"

var (
	one = Amounts{pool: 1}
	now = time.Unix(1_000_000, 0)
)

// holding returns a Holder that has a lease of an amount.
func holding(amount int64) *Holder {
	h := NewHolder(now)
	h.Adopt(Lease{Sequence: 5, Limit: Amounts{pool: amount}, Available: Amounts{pool: 10}})
	return h
}

func report(t *testing.T, h *Holder, at time.Time) Report {
	t.Helper()
	r, ok := h.Report(at)
	if !ok {
		t.Fatal("it reports nothing")
	}
	return r
}

func TestHolder(t *testing.T) {
	t.Run("When all is spent, it should request the launch and report it once", func(t *testing.T) {
		h := holding(1)
		for attempt := range 2 {
			if !h.Spend("n-1", one, now) {
				t.Errorf("attempt %d of the first launch has what it needs", attempt)
			}
			if h.Spend("n-2", one, now) {
				t.Errorf("attempt %d of the second has to wait", attempt)
			}
		}
		if !h.MaySpend(one, now) {
			t.Error("more may be requested")
		}
		want := Report{Sequence: 5, Reserved: Amounts{pool: 1}, Used: Amounts{pool: 1}, Requests: []Request{{one, 1}}}
		if diff := cmp.Diff(want, report(t, h, now)); diff != "" {
			t.Errorf("report (-want +got):\n%s", diff)
		}
	})
	t.Run("When it is asked for what is spent, it should report what it spends, and less when a machine is gone", func(t *testing.T) {
		h := holding(3)
		for _, name := range []string{"n-1", "n-2"} {
			h.Exists(name, one)
		}
		h.Spend("n-3", one, now)
		h.Adopt(Lease{Sequence: 6, Limit: Amounts{pool: 1}, Available: Amounts{pool: 1}})
		if r := report(t, h, now); r.Sequence != 6 || r.Reserved[pool] != 3 {
			t.Errorf("report: %+v", r)
		}
		h.Gone("n-1", now)
		if r := report(t, h, now); r.Reserved[pool] != 2 {
			t.Errorf("report: %+v", r)
		}
		if h.Spend("n-4", one, now) || h.MaySpend(one, now) {
			t.Error("it has less than it spends")
		}
	})
	t.Run("When an older lease is read, it should ignore it", func(t *testing.T) {
		h := holding(1)
		h.Adopt(Lease{Sequence: 4, Limit: Amounts{pool: 10}})
		if h.Spend("n-1", one, now); h.Spend("n-2", one, now) {
			t.Error("it spends by a grant that it doesn't have any more")
		}
	})
	t.Run("When a cache has another lease than the API server, it should ignore it, however new its grant is", func(t *testing.T) {
		h := NewHolder(now)
		h.Adopt(Lease{ID: "new"})
		if h.Observe(Lease{ID: "deleted", Sequence: 7, Limit: Amounts{pool: 10}}) || h.Spend("n-1", one, now) {
			t.Error("it spends by a lease that was deleted, and may have been returned")
		}
		if !h.Observe(Lease{ID: "new", Sequence: 8, Limit: one}) || !h.Spend("n-1", one, now) {
			t.Error("it has what it needs")
		}
	})
	t.Run("When its lease was replaced by one without a grant, it should keep to what it was granted", func(t *testing.T) {
		h := holding(2)
		h.Adopt(Lease{ID: "new"})
		if !h.Spend("n-1", one, now) || report(t, h, now).Sequence != 5 {
			t.Error("what was granted stays granted")
		}
		if h.Adopt(Lease{ID: "new", Sequence: 6, Limit: one}); h.Spend("n-2", one, now) || report(t, h, now).Sequence != 6 {
			t.Error("it was asked for what it doesn't spend")
		}
	})
	t.Run("When a retry chooses another offering, it should count the most of both", func(t *testing.T) {
		h := NewHolder(now)
		h.Adopt(Lease{Sequence: 1, Limit: Amounts{"vcpus": 8, "gpus": 1}})
		if !h.Spend("n-1", Amounts{"vcpus": 8}, now) || !h.Spend("n-1", Amounts{"vcpus": 4, "gpus": 1}, now) {
			t.Error("both fit, of which one comes")
		}
		if diff := cmp.Diff(Amounts{"vcpus": 8, "gpus": 1}, report(t, h, now).Reserved); diff != "" {
			t.Errorf("held (-want +got):\n%s", diff)
		}
		h.Exists("n-1", Amounts{"vcpus": 4})
		if !h.Spend("n-2", Amounts{"vcpus": 4, "gpus": 1}, now) {
			t.Error("the Machine takes less")
		}
	})
	t.Run("When another process has run before, it should neither spend nor report until what that has tried has come", func(t *testing.T) {
		h := NewHolder(now.Add(InFlight))
		h.Adopt(Lease{Sequence: 5, Limit: Amounts{pool: 1}})
		if _, ok := h.Report(now); ok || h.Spend("n-1", one, now) || h.MaySpend(one, now) {
			t.Error("it begins too early")
		}
		if !h.Spend("n-1", one, now.Add(InFlight)) {
			t.Error("it doesn't begin")
		}
	})
	t.Run("When the lease grants nothing yet, it should neither launch nor report, whatever a launch takes", func(t *testing.T) {
		h := NewHolder(now)
		h.Adopt(Lease{Sequence: 0, Limit: nil})
		if _, ok := h.Report(now); ok || h.Spend("n-1", Amounts{}, now) || h.MaySpend(Amounts{}, now) {
			t.Error("what a launch takes isn't known before the first grant")
		}
	})
	t.Run("When a request isn't renewed, it should be forgotten", func(t *testing.T) {
		h := holding(0)
		h.Spend("n-1", one, now)
		h.Spend("n-2", Amounts{pool: 2}, now.Add(time.Minute))
		if r := report(t, h, now.Add(RequestTTL)); len(r.Requests) != 1 || r.Requests[0].Charges[pool] != 2 {
			t.Errorf("requests: %+v", r.Requests)
		}
	})
}

func TestLaunchesGivenUp(t *testing.T) {
	t.Run("When a launch is given up, it should count until the API server reports that its Machine hasn't come, and can't any more", func(t *testing.T) {
		h := holding(1)
		h.Spend("n-1", one, now)
		h.Abandon("n-1", now)
		h.Absent("n-1", now.Add(InFlight-time.Second))
		if h.Spend("n-2", one, now.Add(InFlight)) || len(h.Unclear(now.Add(InFlight-time.Second))) > 0 {
			t.Error("the Machine may still come")
		}
		if diff := cmp.Diff([]string{"n-1"}, h.Unclear(now.Add(InFlight))); diff != "" {
			t.Errorf("unclear (-want +got):\n%s", diff)
		}
		h.Absent("n-1", now.Add(InFlight))
		if !h.Spend("n-2", one, now.Add(InFlight)) {
			t.Error("the Machine can't come any more")
		}
	})
	t.Run("When a launch that was given up has its Machine, it should count that", func(t *testing.T) {
		h := holding(1)
		h.Spend("n-1", one, now)
		h.Abandon("n-1", now)
		h.Exists("n-1", one)
		if h.Absent("n-1", now.Add(InFlight)); h.Spend("n-2", one, now.Add(2*InFlight)) || len(h.Unclear(now.Add(2*InFlight))) > 0 {
			t.Error("the Machine exists")
		}
	})
	t.Run("When a Machine is gone right after it was created, it should count a second attempt that may create it again", func(t *testing.T) {
		h := holding(1)
		h.Spend("n-1", one, now)
		h.Exists("n-1", one)
		h.Gone("n-1", now.Add(time.Second))
		h.Absent("n-1", now.Add(2*time.Second))
		if h.Spend("n-2", one, now.Add(2*time.Second)) {
			t.Error("the Machine may come again")
		}
		h.Absent("n-1", now.Add(2*InFlight))
		if !h.Spend("n-2", one, now.Add(2*InFlight)) {
			t.Error("the Machine can't come any more")
		}
	})
	t.Run("When a Machine is gone long after it was created, it should not count", func(t *testing.T) {
		h := holding(1)
		h.Spend("n-1", one, now)
		h.Exists("n-1", one)
		h.Gone("n-1", now.Add(2*InFlight))
		if !h.Spend("n-2", one, now.Add(2*InFlight)) {
			t.Error("the Machine is gone")
		}
	})
}

func TestLeave(t *testing.T) {
	// left is a Holder that has left a launch which waits since now.
	waiting := func(t *testing.T) *Holder {
		t.Helper()
		h := holding(0)
		if since := h.Request("n-1", one, now); !since.Equal(now) {
			t.Fatalf("it waits since %s", since)
		}
		h.Leave("n-1", now.Add(time.Second))
		return h
	}
	requests := func(t *testing.T, h *Holder, at time.Time) (count int64) {
		t.Helper()
		for _, r := range report(t, h, at).Requests {
			count += r.Count
		}
		return count
	}
	t.Run("When a launch is given up while it waits, its request should count until another takes it over", func(t *testing.T) {
		h, later := waiting(t), now.Add(10*time.Second)
		if requests(t, h, later) != 1 || !h.HasLeft(later) {
			t.Error("the pods that it was for still want it")
		}
		if since := h.Request("n-2", one, later); !since.Equal(now) {
			t.Errorf("the next waits since %s, want %s", since, now)
		}
		if requests(t, h, later) != 1 || h.HasLeft(later) {
			t.Error("two launches of the same pods count once")
		}
		if since := h.Request("n-3", one, later); !since.Equal(later) || requests(t, h, later) != 2 {
			t.Error("another launch is another request")
		}
		if h.Spend("n-2", one, later); requests(t, h, later.Add(LeftTTL)) != 2 {
			t.Error("what was taken over counts as long as any request")
		}
	})
	t.Run("When none takes a request over, it should be forgotten", func(t *testing.T) {
		h := waiting(t)
		if at := now.Add(time.Second + LeftTTL); requests(t, h, at) != 0 || h.HasLeft(at) {
			t.Error("the request of a launch that was given up still counts")
		}
	})
	t.Run("When another launch takes something else, it should leave the request", func(t *testing.T) {
		h := waiting(t)
		if since := h.Request("n-2", Amounts{pool: 2}, now.Add(time.Second)); !since.Equal(now.Add(time.Second)) || requests(t, h, now.Add(time.Second)) != 2 {
			t.Error("both are wanted")
		}
	})
	t.Run("When a launch finds that more was granted, the request should end", func(t *testing.T) {
		h := waiting(t)
		h.Adopt(Lease{Sequence: 6, Limit: one, Available: Amounts{pool: 10}})
		if !h.Spend("n-2", one, now.Add(time.Second)) || requests(t, h, now.Add(time.Second)) != 0 {
			t.Error("it was for the same pods")
		}
	})
	t.Run("When a launch is given up that doesn't wait, nothing should be left", func(t *testing.T) {
		h := holding(1)
		h.Spend("n-1", one, now)
		h.Leave("n-1", now)
		if h.HasLeft(now) || requests(t, h, now) != 0 {
			t.Error("it waits for nothing")
		}
		if h.Unclear(now.Add(InFlight)) == nil {
			t.Error("its Machine may still come")
		}
	})
}

func TestWant(t *testing.T) {
	const vcpus = "quota/all/cpu"
	big, small := Amounts{vcpus: 16}, Amounts{vcpus: 2}
	// holder with so much, of which 8 are spent.
	holder := func(amount int64) *Holder {
		h := NewHolder(now)
		h.Adopt(Lease{Sequence: 1, Limit: Amounts{vcpus: amount}})
		h.Spend("runs", Amounts{vcpus: 8}, now)
		return h
	}
	t.Run("When pods want more launches than before, it should request as many, and since when the first did", func(t *testing.T) {
		h := holder(8)
		h.Want(big, 1, now)
		h.Want(big, 3, now.Add(time.Second))
		h.Want(small, 1, now.Add(2*time.Second))
		if diff := cmp.Diff([]Request{{big, 3}, {small, 1}}, report(t, h, now.Add(2*time.Second)).Requests); diff != "" {
			t.Errorf("requests (-want +got):\n%s", diff)
		}
		if since := h.Request("n-1", big, now.Add(3*time.Second)); !since.Equal(now) {
			t.Errorf("the launch waits since %s, want %s", since, now)
		}
	})
	t.Run("When a launch was given up while it waited, pods that want the same should not request it twice", func(t *testing.T) {
		h := holder(8)
		h.Request("n-1", big, now)
		h.Leave("n-1", now)
		h.Want(big, 1, now)
		if diff := cmp.Diff([]Request{{big, 1}}, report(t, h, now).Requests); diff != "" {
			t.Errorf("requests (-want +got):\n%s", diff)
		}
	})
	t.Run("When a part is reclaimed, it should launch no more than it may keep, and replace what was kept", func(t *testing.T) {
		h := holder(24)
		h.Keep("runs")
		h.Exists("runs", Amounts{vcpus: 8})
		h.Keep("runs")
		h.Adopt(Lease{Sequence: 1, Limit: Amounts{vcpus: 24}, Reclaims: reclaims(Amounts{vcpus: 10})})
		if h.Left(vcpus) != 2 || h.Free(vcpus) != 2 || h.MaySpend(big, now) || h.Spend("n-1", big, now) {
			t.Errorf("it has %d left", h.Left(vcpus))
		}
		if !h.Spend("n-2", small, now) {
			t.Error("it may keep that much")
		}
		h.Gone("runs", now.Add(2*InFlight))
		if !h.SpendVacancy("n-3", "runs", Amounts{vcpus: 8}, now.Add(2*InFlight)) {
			t.Error("it replaces what was kept")
		}
	})
}
