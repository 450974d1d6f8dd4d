// SPDX-License-Identifier: Apache-2.0

package division

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// using is a member whose machines take this much, which it was granted.
func using(used int64, change func(*Member), requests ...Request) (Member, Grant) {
	grant := Grant{Lease: "lease", Sequence: 3, Limit: Amounts{pool: used}, Granted: Amounts{pool: used}}
	if used == 0 {
		grant.Limit, grant.Granted = Amounts{}, Amounts{}
	}
	m := Member{Used: grant.Limit.clone(), Lease: lease(grant, grant.Limit, requests...)}
	if change != nil {
		change(&m)
	}
	return m, grant
}

func guaranteed(amount int64) func(*Member) {
	return func(m *Member) { m.Guaranteed = Amounts{pool: amount} }
}

func TestLending(t *testing.T) {
	t.Run("When an amount is guaranteed, others should be granted what its cluster neither uses nor requests", func(t *testing.T) {
		for _, tc := range []struct{ used, requested, want int64 }{{0, 0, 10}, {1, 0, 9}, {1, 1, 8}, {1, 9, 7}} {
			lender, lent := using(tc.used, guaranteed(3), Request{one, tc.requested})
			borrower, none := using(0, nil, Request{one, 20})
			d := Decide(Account{
				Limits: Amounts{pool: 10}, Now: now, Members: map[string]Member{"blue": lender, "green": borrower}, Record: map[string]Grant{"blue": lent, "green": none},
			})
			want := tc.want
			if more := tc.used + tc.requested - 3; more > 0 {
				want = 10 - d.Record["blue"].Granted[pool] // it competes for the rest
			}
			if got := d.Record["green"].Granted[pool]; got != want {
				t.Errorf("%+v: granted %d", tc, got)
			}
		}
	})
	t.Run("When others use it, its cluster should be offered nothing that they have to return first, and may request it", func(t *testing.T) {
		lender, lent := using(0, guaranteed(3))
		borrower, full := using(10, nil)
		d := Decide(Account{Limits: Amounts{pool: 10}, Now: now, Members: map[string]Member{"blue": lender, "green": borrower}, Record: map[string]Grant{"blue": lent, "green": full}})
		if d.Available["blue"][pool] != 0 || d.Attainable["blue"][pool] < 3 || len(d.Reclaims) > 0 {
			t.Errorf("up to %v, most %v, reclaims %v", d.Available["blue"], d.Attainable["blue"], d.Reclaims)
		}
	})
}

func TestReclaim(t *testing.T) {
	type cluster struct {
		used      int64
		change    func(*Member)
		requested int64
	}
	for _, tc := range []struct {
		name     string
		clusters map[string]cluster
		before   map[string]Amounts
		want     map[string]Amounts // that the clusters may keep
	}{
		{"When a cluster requests what it lends, the borrower should be asked for no more than that",
			map[string]cluster{"blue": {0, guaranteed(3), 2}, "green": {10, nil, 0}}, nil, map[string]Amounts{"green": {pool: 8}}},
		{"When it requests more than is guaranteed to it, the borrower should be asked for no more than is",
			map[string]cluster{"blue": {1, guaranteed(3), 9}, "green": {9, nil, 0}}, nil, map[string]Amounts{"green": {pool: 7}}},
		{"When a part is free, the borrower should be asked for the rest",
			map[string]cluster{"blue": {0, guaranteed(3), 3}, "green": {9, nil, 0}}, nil, map[string]Amounts{"green": {pool: 7}}},
		{"When all of it is free, none should be asked",
			map[string]cluster{"blue": {0, guaranteed(3), 3}, "green": {7, nil, 0}}, nil, map[string]Amounts{}},
		{"When a borrower is guaranteed something, it should keep that",
			map[string]cluster{"blue": {0, guaranteed(6), 6}, "green": {7, guaranteed(4), 0}, "red": {3, guaranteed(1), 0}}, nil,
			map[string]Amounts{"green": {pool: 4}, "red": {pool: 1}}},
		{"When priorities differ, the lowest should be asked first",
			map[string]cluster{"blue": {0, guaranteed(4), 4}, "green": {7, func(m *Member) { m.Priority = 1 }, 0}, "red": {3, nil, 0}}, nil,
			map[string]Amounts{"green": {pool: 6}, "red": {pool: 0}}},
		{"When priorities are equal, that which uses the most beyond its guarantee should be asked first",
			map[string]cluster{"blue": {0, guaranteed(4), 4}, "green": {6, guaranteed(4), 0}, "red": {4, nil, 0}}, nil,
			map[string]Amounts{"red": {pool: 0}}},
		{"When two clusters request theirs, the borrower should be asked for both",
			map[string]cluster{"blue": {0, guaranteed(2), 2}, "amber": {0, guaranteed(3), 3}, "green": {10, nil, 0}}, nil,
			map[string]Amounts{"green": {pool: 5}}},
		{"When a borrower was asked before, that should stay",
			map[string]cluster{"blue": {0, guaranteed(3), 2}, "green": {10, nil, 0}}, map[string]Amounts{"green": {pool: 8}},
			map[string]Amounts{"green": {pool: 8}}},
		{"When it has returned a part, the rest should stay",
			map[string]cluster{"blue": {0, guaranteed(3), 2}, "green": {9, nil, 0}}, map[string]Amounts{"green": {pool: 8}},
			map[string]Amounts{"green": {pool: 8}}},
		{"When nothing is requested any more, none should be asked",
			map[string]cluster{"blue": {0, guaranteed(3), 0}, "green": {10, nil, 0}}, map[string]Amounts{"green": {pool: 8}},
			map[string]Amounts{}},
		{"When another borrower uses more meanwhile, the one that was asked should stay so",
			map[string]cluster{"blue": {0, guaranteed(2), 2}, "green": {4, nil, 0}, "red": {6, nil, 0}}, map[string]Amounts{"green": {pool: 2}},
			map[string]Amounts{"green": {pool: 2}}},
		{"When its own maximum keeps a cluster from launching, it should request nothing of others",
			map[string]cluster{"blue": {1, func(m *Member) {
				guaranteed(3)(m)
				m.Maximum = Amounts{pool: 1}
			}, 2}, "green": {9, nil, 0}}, nil, map[string]Amounts{}},
		{"When a cluster leaves, it should not be asked: its machines go anyway",
			map[string]cluster{"blue": {0, guaranteed(3), 2}, "green": {10, func(m *Member) { m.Leaving = true }, 0}}, nil, map[string]Amounts{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := Account{Limits: Amounts{pool: 10}, Now: now, Members: map[string]Member{}, Record: map[string]Grant{}}
			for name, c := range tc.clusters {
				var requests []Request
				if c.requested > 0 {
					requests = append(requests, Request{one, c.requested})
				}
				a.Members[name], a.Record[name] = using(c.used, c.change, requests...)
				a.Members[name].Lease.Reclaims = reclaims(tc.before[name])
			}
			if diff := cmp.Diff(tc.want, limits(Decide(a).Reclaims)); diff != "" {
				t.Errorf("reclaims (-want +got):\n%s", diff)
			}
		})
	}
}

// reclaims are those of a lease that limits a cluster to these amounts.
func reclaims(limits Amounts) Reclaims {
	reclaims := Reclaims{}
	for pool, limit := range limits {
		reclaims[pool] = []Reclaim{{Limit: limit}}
	}
	return reclaims
}

// limits are the amounts that clusters may keep.
func limits(decided map[string]Reclaims) map[string]Amounts {
	limits := map[string]Amounts{}
	for name, reclaims := range decided {
		limits[name] = Amounts{}
		for pool := range reclaims {
			limits[name][pool], _ = reclaims.Limit(pool)
		}
	}
	return limits
}

func TestFollow(t *testing.T) {
	const grace = 15 * time.Minute
	now := time.Unix(1_000_020, 0)
	by := time.Unix(1_000_020, 0).Add(grace)
	due := func(limit int64, by time.Time) Reclaim { return Reclaim{Limit: limit, For: []string{"blue"}, By: by} }
	earlier, passed := by.Add(-5*time.Minute), now.Add(-time.Minute)
	for _, tc := range []struct {
		name   string
		before []Reclaim
		limit  int64
		want   []Reclaim
	}{
		{"When an amount is requested for the first time, it should be due after the grace period", nil, 8, []Reclaim{due(8, by)}},
		{"When it is requested still, its deadline should stay", []Reclaim{due(8, earlier)}, 8, []Reclaim{due(8, earlier)}},
		{"When more is requested, that should have a deadline of its own", []Reclaim{due(8, earlier)}, 7,
			[]Reclaim{due(8, earlier), due(7, by)}},
		{"When more is requested within the same minute, that should have the same deadline", []Reclaim{due(8, by)}, 7,
			[]Reclaim{due(7, by)}},
		{"When another cluster requests it, its deadline should stay", []Reclaim{{Limit: 8, For: []string{"red"}, By: earlier}}, 8,
			[]Reclaim{due(8, earlier)}},
		{"When less is requested, the cluster should keep more", []Reclaim{due(8, earlier), due(7, by)}, 9, []Reclaim{due(9, earlier)}},
		{"When several deadlines have passed, they should be one", []Reclaim{due(8, passed.Add(-time.Minute)), due(7, passed)}, 6,
			[]Reclaim{due(7, passed.Add(-time.Minute)), due(6, by)}},
		{"When a deadline lies further ahead than the grace period, it should count as that", []Reclaim{due(8, now.Add(time.Hour))}, 8,
			[]Reclaim{due(8, by)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			decided := Reclaims{pool: {{Limit: tc.limit, For: []string{"blue"}}}}
			if diff := cmp.Diff(Reclaims{pool: tc.want}, Follow(Reclaims{pool: tc.before}, decided, now, grace)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestRetained(t *testing.T) {
	decide := func(at time.Time, requested int64, retained map[string]map[string]Retained) Decision {
		lender, lent := using(0, guaranteed(3), Request{one, requested})
		borrower, some := using(8, nil, Request{one, 5})
		return Decide(Account{
			Limits: Amounts{pool: 10}, Now: at, Members: map[string]Member{"blue": lender, "green": borrower}, Record: map[string]Grant{"blue": lent, "green": some}, Retained: retained,
		})
	}
	first := decide(now, 3, nil)
	if got := first.Retained["blue"][pool]; got.Amount != 3 || got.Until.Before(now.Add(RetainFor)) {
		t.Fatalf("retained %+v", got)
	}
	t.Run("When the request has gone, what was reclaimed should not be lent for an hour, and nothing be reclaimed for it", func(t *testing.T) {
		d := decide(now.Add(RetainFor-time.Minute), 0, first.Retained)
		if granted := d.Record["green"].Granted[pool]; granted != 8 {
			t.Errorf("the borrower is granted %d", granted)
		}
		if len(d.Reclaims) > 0 {
			t.Errorf("reclaims %v", d.Reclaims)
		}
		if diff := cmp.Diff(first.Retained, d.Retained); diff != "" {
			t.Errorf("retained (-want +got):\n%s", diff)
		}
		if d.Next.After(first.Retained["blue"][pool].Until) || d.Next.IsZero() {
			t.Errorf("the next decision is at %s", d.Next)
		}
	})
	t.Run("When the hour has passed, it should be lent again", func(t *testing.T) {
		d := decide(now.Add(RetainFor+time.Minute), 0, first.Retained)
		if granted := d.Record["green"].Granted[pool]; granted != 10 || len(d.Retained) > 0 {
			t.Errorf("the borrower is granted %d; retained %v", granted, d.Retained)
		}
	})
}

// drain lets a Karpenter remove machines as its lease requires: some of them at once, and all that are left at the deadline.
func (a *simulation) drain(name string, random *rand.Rand) {
	m := a.members[name]
	for {
		total := int64(0)
		for _, amount := range m.machines {
			total += amount
		}
		if len(a.reclaims[name]) == 0 {
			return
		}
		next := a.reclaims[name].Next(vcpus, total)
		if total <= next.Limit || a.now.Before(next.By) && random.IntN(4) > 0 {
			return
		}
		machine, ok := m.any(random)
		if !ok {
			return
		}
		if rest := total - m.machines[machine]; rest < m.Guaranteed[vcpus] {
			a.Fatalf("%s is left %d, and is guaranteed %d", name, rest, m.Guaranteed[vcpus])
		}
		a.remove(name, machine, true)
	}
}

func TestReclaimOfAnyDemand(t *testing.T) {
	const size = 4
	names := []string{"amber", "blue", "green", "red", "violet"}
	reclaimed := 0
	for seed := range *schedules / 10 {
		random := rand.New(rand.NewPCG(seed, 3))
		a := newSimulation(t, 64, names...)
		rest := int64(16)
		for _, name := range names {
			m := a.members[name]
			m.Priority, m.Guaranteed = int32(random.IntN(2)), Amounts{}
			if share := min(rest, int64(random.IntN(7))); share > 0 {
				m.Guaranteed[vcpus] = size * share
				rest -= share
			}
		}
		for range 4 {
			for _, name := range names { // pods come and go
				m := a.members[name]
				clear(m.pods)
				for _, machine := range slices.Sorted(maps.Keys(m.machines)) {
					if random.IntN(3) == 0 {
						a.remove(name, machine, false)
					}
				}
				for range random.IntN(17) {
					a.want(name, size)
				}
			}
			for range int((DefaultReclaimGracePeriod+2*time.Minute)/round) + 12 {
				for _, name := range names {
					a.drain(name, random)
				}
				a.pass()
				for _, reclaims := range a.reclaims {
					reclaimed += len(reclaims)
				}
			}
			for _, name := range names {
				m := a.members[name]
				has := size * int64(len(m.machines))
				if wanted := has + size*int64(len(m.pods)); has < min(wanted, m.Guaranteed[vcpus]) {
					t.Fatalf("seed %d: %s has %d of the %d that are guaranteed to it, and wants %d; record %+v, reclaims %+v", seed, name, has, m.Guaranteed[vcpus], wanted, a.record, a.reclaims)
				}
			}
		}
	}
	if reclaimed == 0 {
		t.Error("nothing was ever reclaimed")
	}
}

func TestRaisedGuarantee(t *testing.T) {
	t.Run("When a guarantee of a full pool is raised, its cluster should have it by the deadline, and keep an idle unit of another pool no longer unused", func(t *testing.T) {
		const reservation = "reservation/cr-1"
		usage := map[string]Amounts{"blue": {vcpus: 8, reservation: 1}, "green": {}, "red": {}}
		want := Amounts{vcpus: 4, reservation: 1}
		requests := map[string][]Request{"green": {{want, 1}}, "red": {{Amounts{reservation: 1}, 1}}}
		d, at := Decision{Record: map[string]Grant{}}, now
		for name, used := range usage {
			d.Record[name] = Grant{Lease: name, Sequence: 1, Limit: used, Granted: used}
		}
		for ; at.Before(now.Add(DefaultReclaimGracePeriod + 2*time.Minute)); at = at.Add(round) {
			if at.Sub(now) >= DefaultReclaimGracePeriod && len(d.Reclaims["blue"]) > 0 {
				usage["blue"] = Amounts{vcpus: 4, reservation: 1}
			}
			account := Account{Limits: Amounts{vcpus: 8, reservation: 2}, Record: d.Record, Retained: d.Retained, Now: at, Members: map[string]Member{}}
			for name, used := range usage {
				grant := d.Record[name]
				account.Members[name] = Member{Used: used, Lease: lease(grant, grant.Limit, requests[name]...)}
			}
			green := account.Members["green"]
			green.Guaranteed = Amounts{vcpus: 4}
			account.Members["green"] = green
			if d = Decide(account); d.Record["green"].Limit[reservation] > 0 {
				usage["green"], requests["green"] = want, nil
			}
		}
		if diff := cmp.Diff(want, d.Record["green"].Limit); diff != "" {
			t.Errorf("green is granted (-want +got):\n%s", diff)
		}
	})
}

func TestReclaimedFor(t *testing.T) {
	lender, lent := using(0, guaranteed(3), Request{one, 2})
	borrower, full := using(10, nil)
	d := Decide(Account{Limits: Amounts{pool: 10}, Now: now, Members: map[string]Member{"blue": lender, "green": borrower}, Record: map[string]Grant{"blue": lent, "green": full}})
	if diff := cmp.Diff(map[string]Reclaims{"green": {pool: {{Limit: 8, For: []string{"blue"}}}}}, d.Reclaims); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if waiting := d.Waiting[pool]; waiting != 2 {
		t.Errorf("waiting is %s", fmt.Sprint(waiting))
	}
}
