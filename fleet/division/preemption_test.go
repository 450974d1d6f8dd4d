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

func TestPreemption(t *testing.T) {
	const other = "quota/all/gpus"
	type cluster struct {
		priority   int32
		guaranteed int64
		used       Amounts
		requests   []Request
		before     Amounts
	}
	large := func(amount int64) []Request { return []Request{{Amounts{pool: amount}, 1}} }
	for _, tc := range []struct {
		name     string
		never    bool
		clusters map[string]cluster
		want     map[string]Amounts
	}{
		{"When a request doesn't fit, a lower priority should be asked for what it lacks", false,
			map[string]cluster{"blue": {priority: 1, requests: large(4)}, "green": {used: Amounts{pool: 8}}}, map[string]Amounts{"green": {pool: 6}}},
		{"When it fits, none should be asked", false,
			map[string]cluster{"blue": {priority: 1, requests: large(2)}, "green": {used: Amounts{pool: 8}}}, map[string]Amounts{}},
		{"When preemption is off, none should be asked", true,
			map[string]cluster{"blue": {priority: 1, requests: large(4)}, "green": {used: Amounts{pool: 8}}}, map[string]Amounts{}},
		{"When priorities are equal, none should be asked", false,
			map[string]cluster{"blue": {requests: large(4)}, "green": {used: Amounts{pool: 8}}}, map[string]Amounts{}},
		{"When what lower priorities may return doesn't suffice, none should be asked", false,
			map[string]cluster{"blue": {priority: 1, requests: large(8)}, "green": {used: Amounts{pool: 6}, guaranteed: 3}, "red": {priority: 1, used: Amounts{pool: 4}}},
			map[string]Amounts{}},
		{"When several priorities are lower, the lowest should be asked first, and keep what is guaranteed to it", false,
			map[string]cluster{"blue": {priority: 2, requests: large(5)}, "green": {used: Amounts{pool: 5}, guaranteed: 1}, "red": {priority: 1, used: Amounts{pool: 5}}},
			map[string]Amounts{"green": {pool: 1}, "red": {pool: 4}}},
		{"When several clusters request, each should reclaim from lower priorities than its own", false,
			map[string]cluster{"amber": {priority: 2, requests: large(4)}, "blue": {priority: 1, requests: large(4)}, "green": {used: Amounts{pool: 5}}, "red": {priority: 1, used: Amounts{pool: 5}}},
			map[string]Amounts{"green": {pool: 1}}},
		{"When a guarantee and a preemption need it, both should be asked for", false,
			map[string]cluster{"amber": {guaranteed: 3, requests: []Request{{one, 3}}}, "blue": {priority: 1, requests: large(4)}, "green": {used: Amounts{pool: 10}}},
			map[string]Amounts{"green": {pool: 3}}},
		{"When a launch takes from two pools, none should be asked unless both suffice", false,
			map[string]cluster{"blue": {priority: 1, requests: []Request{{Amounts{pool: 4, other: 1}, 1}}}, "green": {used: Amounts{pool: 10}}, "red": {priority: 1, used: Amounts{other: 2}}},
			map[string]Amounts{}},
		{"When both suffice, both should be asked for", false,
			map[string]cluster{"blue": {priority: 1, requests: []Request{{Amounts{pool: 4, other: 1}, 1}}}, "green": {used: Amounts{pool: 10, other: 2}}},
			map[string]Amounts{"green": {pool: 6, other: 1}}},
		{"When some of several launches can be had, these should be asked for", false,
			map[string]cluster{"blue": {priority: 1, requests: []Request{{Amounts{pool: 4}, 5}}}, "green": {used: Amounts{pool: 9}}}, map[string]Amounts{"green": {pool: 2}}},
		{"When a borrower was asked before, it should stay so", false,
			map[string]cluster{"blue": {priority: 1, requests: large(2)}, "green": {used: Amounts{pool: 4}, before: Amounts{pool: 2}}, "red": {used: Amounts{pool: 6}}},
			map[string]Amounts{"green": {pool: 2}}},
		{"When the request changes its size, the borrower should be asked for that", false,
			map[string]cluster{"blue": {priority: 1, requests: large(3)}, "green": {used: Amounts{pool: 10}, before: Amounts{pool: 6}}}, map[string]Amounts{"green": {pool: 7}}},
		{"When the request has gone, none should be asked", false,
			map[string]cluster{"blue": {priority: 1}, "green": {used: Amounts{pool: 10}, before: Amounts{pool: 6}}}, map[string]Amounts{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := Account{Limits: Amounts{pool: 10, other: 2}, Preemption: !tc.never, Now: now, Members: map[string]Member{}, Record: map[string]Grant{}}
			for name, c := range tc.clusters {
				grant := Grant{Lease: name, Sequence: 3, Limit: c.used.clone(), Granted: c.used.clone()}
				m := Member{Priority: c.priority, Used: c.used.clone(), Lease: lease(grant, grant.Limit, c.requests...)}
				m.Lease.Reclaims = reclaims(c.before)
				if c.guaranteed > 0 {
					m.Guaranteed = Amounts{pool: c.guaranteed}
				}
				a.Members[name], a.Record[name] = m, grant
			}
			d := Decide(a)
			if diff := cmp.Diff(tc.want, limits(d.Reclaims)); diff != "" {
				t.Errorf("reclaims (-want +got):\n%s", diff)
			}
			for name, c := range tc.clusters {
				if upTo := d.Available[name][pool]; len(tc.want) > 0 && upTo > c.used[pool] {
					t.Errorf("%s is offered %d, which others have to return first", name, upTo)
				}
			}
			if len(d.Retained["blue"]) > 0 {
				t.Errorf("retained %v", d.Retained)
			}
		})
	}
}

// starve has green request 64 of 128 vCPUs beside blue's 4-vCPU machines, of which each is wanted again as soon as it ends. It returns how
// long the request waits.
func starve(t *testing.T, seed uint64, life time.Duration, priority int32, longest time.Duration) (waits time.Duration, served bool) {
	t.Helper()
	a := newSimulation(t, 128, "blue", "green", "red")
	a.preemption, a.members["green"].Priority = priority > 0, priority
	a.fill("blue", 4)
	random, ends := rand.New(rand.NewPCG(seed, 5)), map[string]time.Time{}
	large, begin := a.want("green", 64), a.now
	for a.now.Sub(begin) < longest {
		for _, name := range slices.Sorted(maps.Keys(a.members["blue"].machines)) {
			if end, known := ends[name]; !known {
				ends[name] = a.now.Add(time.Duration(random.ExpFloat64() * float64(life)))
			} else if !a.now.Before(end) {
				a.remove("blue", name, true)
			}
		}
		a.drain("blue", random)
		a.pass()
		if a.members["green"].machines[large] > 0 {
			return a.now.Sub(begin), true
		}
	}
	return longest, false
}

func TestStarvation(t *testing.T) {
	const seeds = 5
	longestWait := 2 * time.Hour
	if testing.Verbose() {
		longestWait = 24 * time.Hour
	}
	for _, life := range []time.Duration{10 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 4 * time.Hour, 8 * time.Hour, 24 * time.Hour} {
		for _, priority := range []int32{0, 1} {
			count, longest := 0, time.Duration(0)
			for seed := range uint64(seeds) {
				waits, served := starve(t, seed, life, priority, longestWait)
				if longest = max(longest, waits); served {
					count++
				}
			}
			t.Logf("small machines live for %s, priority %d: %d of %d large requests are served within %s, the last one after %s", life, priority, count, seeds,
				longestWait, longest)
			if within := DefaultReclaimGracePeriod + DefaultReclaimGracePeriod/deadlinesIn + 10*round; priority > 0 && (count < seeds || longest > within) {
				t.Errorf("%s: a higher priority has to be served within %s", life, within)
			}
		}
	}
}

func TestLargeRequests(t *testing.T) {
	t.Run("When enough is free for a large request, it should be granted at once", func(t *testing.T) {
		a := newSimulation(t, 128, "blue", "green", "red")
		a.fill("blue", 4)
		large, random := a.want("green", 64), rand.New(rand.NewPCG(1, 1))
		for range 64/4 + 4 {
			if name, ok := a.members["blue"].any(random); ok {
				a.remove("blue", name, false)
			}
			a.pass()
		}
		if a.members["green"].machines[large] == 0 {
			t.Errorf("it isn't granted; record %+v", a.record)
		}
	})
	t.Run("When a cluster's own large request waits, it should have what is guaranteed to it", func(t *testing.T) {
		a := newSimulation(t, 128, "blue", "green", "red")
		a.members["green"].Guaranteed, a.members["green"].Maximum = Amounts{vcpus: 16}, Amounts{vcpus: 64}
		a.fill("blue", 4)
		a.want("green", 64)
		random, small := rand.New(rand.NewPCG(1, 1)), []string{a.want("green", 4), a.want("green", 4)}
		for range int(DefaultReclaimGracePeriod/round) + 12 {
			a.drain("blue", random)
			a.pass()
		}
		for _, name := range small {
			if a.members["green"].machines[name] == 0 {
				t.Errorf("%s isn't launched; record %+v, %s", name, a.record, fmt.Sprint(a.reclaims))
			}
		}
	})
}
