// SPDX-License-Identifier: Apache-2.0

package division

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

// simulatedCluster is a cluster whose Karpenter launches what fits, and reports what pods wait for that doesn't.
type simulatedCluster struct {
	Member
	holder *Holder
	lease  Lease
	// pods are the machines that are wanted, by name.
	pods     map[string]int64
	machines map[string]int64
}

// simulation is an account with real Holders, by which launches go through what a Karpenter has read of its lease.
type simulation struct {
	*testing.T
	limits     Amounts
	preemption bool
	now        time.Time
	record     map[string]Grant
	members    map[string]*simulatedCluster
	ids        int

	// reclaims are those of each cluster, by the clock that all share.
	reclaims map[string]Reclaims
	retained map[string]map[string]Retained
}

func newSimulation(t *testing.T, limit int64, names ...string) *simulation {
	a := &simulation{T: t, limits: Amounts{vcpus: limit}, now: now, record: map[string]Grant{}, reclaims: map[string]Reclaims{}, members: map[string]*simulatedCluster{}}
	for _, name := range names {
		m := &simulatedCluster{holder: NewHolder(a.now), lease: Lease{ID: name}, pods: map[string]int64{}, machines: map[string]int64{}}
		m.holder.Adopt(m.lease)
		a.members[name] = m
	}
	return a
}

func (a *simulation) want(name string, amount int64) string {
	a.ids++
	pods := fmt.Sprint("n-", a.ids)
	a.members[name].pods[pods] = amount
	return pods
}

// remove lets a machine go, which pods want again if refill is set.
func (a *simulation) remove(name, machine string, refill bool) {
	m := a.members[name]
	amount := m.machines[machine]
	delete(m.machines, machine)
	m.holder.Gone(machine, a.now.Add(2*InFlight)) // as if it had been launched long ago
	if refill {
		a.want(name, amount)
	}
}

// launch lets a Karpenter launch what its lease leaves room for, the smallest first, which is the worst for large ones.
func (a *simulation) launch(m *simulatedCluster) {
	names := slices.SortedFunc(maps.Keys(m.pods), func(x, y string) int {
		return cmp.Or(cmp.Compare(m.pods[x], m.pods[y]), cmp.Compare(x, y))
	})
	wanted, waiting := map[int64]int64{}, []string(nil)
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
			waiting = append(waiting, name)
		}
	}
	for _, name := range waiting {
		m.holder.Leave(name, a.now)
	}
	for _, amount := range slices.Sorted(maps.Keys(wanted)) {
		m.holder.Want(Amounts{vcpus: amount}, wanted[amount], a.now)
	}
}

// pass lets a round pass: each Karpenter launches and reports, the operator decides, and leases are written.
func (a *simulation) pass() {
	a.Helper()
	a.now = a.now.Add(round)
	account := Account{Limits: a.limits, Preemption: a.preemption, Record: a.record, Retained: a.retained, Now: a.now, First: a.now.Unix(), Members: map[string]Member{}}
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
	a.record, a.retained = decision.Record, decision.Retained
	for name, m := range a.members {
		grant := decision.Record[name]
		m.lease.Sequence, m.lease.Limit, m.lease.Granted, m.lease.Reclaims = grant.Sequence, grant.Limit, grant.Granted, decision.Reclaims[name]
		m.lease.Available = decision.Available[name]
		m.holder.Observe(m.lease)
		a.reclaims[name] = Follow(a.reclaims[name], m.lease.Reclaims, a.now, DefaultReclaimGracePeriod)
	}
}

// fill lets a cluster have as many machines of a size as fit.
func (a *simulation) fill(name string, amount int64) {
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
func (m *simulatedCluster) any(random *rand.Rand) (string, bool) {
	names := slices.Sorted(maps.Keys(m.machines))
	if len(names) == 0 {
		return "", false
	}
	return names[random.IntN(len(names))], true
}
