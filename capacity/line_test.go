// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

const vcpus = "quota/all/cpu"

// round is how often Karpenter and the operator act in these tests.
const round = 10 * time.Second

// lineMember is a cluster whose Karpenter launches what fits, and reports what pods wait for that doesn't.
type lineMember struct {
	Member
	holder *Holder
	lease  Lease
	// pods are the machines that are wanted, by name.
	pods     map[string]int64
	machines map[string]int64
}

// account with real Holders, by which launches go through what a Karpenter has read of its lease.
type lineAccount struct {
	*testing.T
	limits  Amounts
	now     time.Time
	record  map[string]Grant
	line    map[string]Place
	members map[string]*lineMember
	ids     int

	// steps are those of each cluster, by the clock that all share.
	steps    map[string][]Step
	retained map[string]map[string]Retained
}

func newLineAccount(t *testing.T, limit int64, names ...string) *lineAccount {
	a := &lineAccount{T: t, limits: Amounts{vcpus: limit}, now: now, record: map[string]Grant{}, line: map[string]Place{}, steps: map[string][]Step{}, members: map[string]*lineMember{}}
	for _, name := range names {
		m := &lineMember{holder: NewHolder(a.now), lease: Lease{ID: name}, pods: map[string]int64{}, machines: map[string]int64{}}
		m.holder.Adopt(m.lease, nil)
		a.members[name] = m
	}
	return a
}

func (a *lineAccount) want(name string, amount int64) string {
	a.ids++
	pods := fmt.Sprint("n-", a.ids)
	a.members[name].pods[pods] = amount
	return pods
}

// remove lets a machine go, which pods want again if refill is set.
func (a *lineAccount) remove(name, machine string, refill bool) {
	m := a.members[name]
	amount := m.machines[machine]
	delete(m.machines, machine)
	m.holder.Gone(machine, a.now.Add(2*InFlight)) // as if it had been launched long ago
	if refill {
		a.want(name, amount)
	}
}

// launch lets a Karpenter launch what its lease leaves room for, the smallest first, which is the worst for large ones.
func (a *lineAccount) launch(m *lineMember) {
	names := slices.SortedFunc(maps.Keys(m.pods), func(x, y string) int {
		return cmp.Or(cmp.Compare(m.pods[x], m.pods[y]), cmp.Compare(x, y))
	})
	wanted, left := map[int64]int64{}, []string(nil)
	for _, name := range names {
		charges := Amounts{vcpus: m.pods[name]}
		switch {
		case m.holder.Left(vcpus) < charges[vcpus]: // no offering is available, so Karpenter makes no NodeClaim
			wanted[charges[vcpus]]++
		case m.holder.Spend(name, charges, a.now):
			m.holder.Exists(name, charges)
			m.machines[name] = charges[vcpus]
			delete(m.pods, name)
		default:
			left = append(left, name)
		}
	}
	for _, name := range left {
		m.holder.Leave(name, a.now)
	}
	for _, amount := range slices.Sorted(maps.Keys(wanted)) {
		m.holder.Want(Amounts{vcpus: amount}, wanted[amount], a.now)
	}
}

// pass lets a round pass: each Karpenter launches and reports, the operator decides, and leases are written.
func (a *lineAccount) pass() {
	a.Helper()
	a.now = a.now.Add(round)
	account := Account{Limits: a.limits, Record: a.record, Line: a.line, Retained: a.retained, Now: a.now, First: a.now.Unix(), Members: map[string]Member{}}
	total := int64(0)
	for _, name := range slices.Sorted(maps.Keys(a.members)) {
		m := a.members[name]
		a.launch(m)
		m.Used = Amounts{}
		for _, amount := range m.machines {
			m.Used.add(vcpus, amount)
			total += amount
		}
		if report, ok := m.holder.Report(a.now); ok {
			m.lease.Report = report
		}
		lease := m.lease
		m.Lease = &lease
		account.Members[name] = m.Member
	}
	if total > a.limits[vcpus] {
		a.Fatalf("machines take %d of %d", total, a.limits[vcpus])
	}
	decision := Decide(account)
	a.record, a.line, a.retained = decision.Record, decision.Line, decision.Retained
	for name, m := range a.members {
		grant := decision.Record[name]
		m.lease.Sequence, m.lease.Amounts, m.lease.Granted, m.lease.Keep = grant.Sequence, grant.Asked, grant.Granted, decision.Keep[name]
		m.holder.Observe(m.lease, decision.UpTo[name])
		m.lease.Reclaims = decision.Reclaims[name]
		if keep, reclaimed := m.lease.Reclaims[vcpus]; reclaimed {
			a.steps[name] = Follow(a.steps[name], keep, a.now, DefaultReclaimGracePeriod)
		} else {
			delete(a.steps, name)
		}
	}
}

// fill lets a cluster have as many machines of a size as fit.
func (a *lineAccount) fill(name string, amount int64) {
	for range a.limits[vcpus] / amount {
		a.want(name, amount)
	}
	for range 5 {
		a.pass()
	}
	if have := len(a.members[name].machines); int64(have) != a.limits[vcpus]/amount {
		a.Fatalf("%s has %d machines", name, have)
	}
	for range 20 { // until its requests have expired
		a.pass()
	}
}

// any machine of a cluster.
func (m *lineMember) any(random *rand.Rand) (string, bool) {
	names := slices.Sorted(maps.Keys(m.machines))
	if len(names) == 0 {
		return "", false
	}
	return names[random.IntN(len(names))], true
}

func TestLargeRequests(t *testing.T) {
	const most = 6 + 64/4 + 6 // rounds: HoldAfter, what has to become free, and until all know
	for _, tc := range []struct {
		name string
		// small is the cluster with the small machines.
		small string
		set   func(a *lineAccount)
	}{
		{"When small machines of another cluster are replaced again and again, it should be granted once enough have gone", "blue", func(*lineAccount) {}},
		{"When small machines of its own cluster are replaced again and again, it should be granted once enough have gone", "green", func(*lineAccount) {}},
		{"When its own maximum is all that small machines take, it should be granted once enough have gone", "green", func(a *lineAccount) {
			a.members["green"].Maximum = Amounts{vcpus: 128}
			a.limits[vcpus] = 256
		}},
		{"When it has a higher priority, it should be granted once enough have gone", "blue", func(a *lineAccount) { a.members["green"].Priority = 1 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := newLineAccount(t, 128, "blue", "green", "red")
			a.fill(tc.small, 4)
			tc.set(a)
			large := a.want("green", 64)
			random := rand.New(rand.NewPCG(1, 1))
			for range most {
				name, _ := a.members[tc.small].any(random)
				a.remove(tc.small, name, true)
				a.pass()
				if a.members["green"].machines[large] > 0 {
					return
				}
			}
			t.Errorf("it isn't granted after %d rounds; record %+v, line %+v", most, a.record, a.line)
		})
	}
	t.Run("When small requests have a higher priority, they should be served first", func(t *testing.T) {
		a := newLineAccount(t, 128, "blue", "green")
		a.fill("blue", 4)
		a.members["blue"].Priority = 1
		a.want("green", 64)
		random := rand.New(rand.NewPCG(1, 1))
		for range 200 {
			name, _ := a.members["blue"].any(random)
			a.remove("blue", name, true)
			a.pass()
		}
		a.pass()
		a.pass()
		if waiting := len(a.members["blue"].pods); waiting > 0 {
			t.Errorf("%d of them wait", waiting)
		}
	})
	t.Run("When nothing becomes free for it, small launches should wait no longer than a hold takes", func(t *testing.T) {
		a := newLineAccount(t, 128, "blue", "green", "red")
		a.fill("blue", 4)
		random := rand.New(rand.NewPCG(1, 1))
		for range 8 {
			name, _ := a.members["blue"].any(random)
			a.remove("blue", name, false)
		}
		a.want("green", 64)
		for range int(HoldAfter/round) + 1 {
			a.pass()
		}
		small := a.want("red", 4)
		served := func(rounds int) bool {
			for range rounds {
				a.pass()
				if a.members["red"].machines[small] > 0 {
					return true
				}
			}
			return false
		}
		if served(int(HoldWithout/round) - 2) {
			t.Fatalf("nothing is held for the large one: %+v", a.line)
		}
		if !served(6) {
			t.Fatalf("it waits although the hold has lasted long enough: %+v", a.line)
		}
		small = a.want("red", 4)
		if !served(3) {
			t.Error("nothing should be held right after that")
		}
	})
	t.Run("When it is for more than there ever is, nothing should be held for it", func(t *testing.T) {
		a := newLineAccount(t, 128, "blue", "green", "red")
		a.members["blue"].Guaranteed = Amounts{vcpus: 68}
		a.fill("blue", 4)
		a.want("green", 64)
		for range 20 {
			a.pass()
		}
		random := rand.New(rand.NewPCG(1, 1))
		name, _ := a.members["blue"].any(random)
		a.remove("blue", name, false)
		small := a.want("red", 4)
		for range 4 {
			a.pass()
		}
		if a.members["red"].machines[small] == 0 {
			t.Errorf("a small one waits although the large one can't gain: %+v", a.line)
		}
	})
}

func TestWaitingTime(t *testing.T) {
	t.Run("When machines of any size come and go, each request should be granted within as many rounds as all before it need", func(t *testing.T) {
		const limit = 128
		for seed := range *schedules / 3 {
			random := rand.New(rand.NewPCG(seed, 3))
			a := newLineAccount(t, limit, "blue", "green", "red")
			sizes := []int64{4, 4, 4, 8, 16, 48}
			since := map[string]int{}
			for i := range 600 {
				for _, name := range slices.Sorted(maps.Keys(a.members)) {
					for len(a.members[name].pods) < 2 {
						since[a.want(name, sizes[random.IntN(len(sizes))])] = i
					}
				}
				// One machine goes in each round, whosever it is.
				if owner := []string{"blue", "green", "red"}[random.IntN(3)]; len(a.members[owner].machines) > 0 {
					name, _ := a.members[owner].any(random)
					a.remove(owner, name, false)
				}
				a.pass()
				for name, m := range a.members {
					for pods := range m.pods {
						// Two of each cluster wait; each needs as much as 48/4 machines leave, in two of three rounds, after HoldAfter.
						if waits := i - since[pods]; waits > 6*(48/4*3/2+int(HoldAfter/round)+6) {
							t.Fatalf("seed %d, round %d: %d vCPUs of %s wait for %d rounds; line %+v", seed, i, m.pods[pods], name, waits, a.line)
						}
					}
				}
			}
		}
	})
}
