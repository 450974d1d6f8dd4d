// SPDX-License-Identifier: Apache-2.0

package division

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"
)

// schedules may be many more after a change of the protocol: go test ./fleet/division -run TestSchedules -schedules 20000 -timeout 0
var schedules = flag.Uint64("schedules", 300, "how many random schedules to play")

// TestMain plays a tenth of the schedules with -short, as make race does: they have no goroutines, and with the race detector each takes
// nine times as long.
func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		*schedules /= 10
	}
	m.Run()
	if testing.Verbose() {
		fmt.Printf("%d decisions were checked in random schedules\n", decisions)
	}
}

// decisions counts those of random schedules.
var decisions int

// universe is an account in management with two operators and a Karpenter for each cluster, of which everything may be
// slow, stale, partitioned or dead at any moment.
type universe struct {
	*testing.T
	random *rand.Rand
	now    time.Time
	limits Amounts
	// strict: the limits never change, so what exists may never exceed them.
	strict bool
	// lossy: accounts may be lost with their record and created again, so that more counts as granted than is.
	lossy bool
	// account is how often that has happened.
	account int

	shapes []Amounts
	// weights of what happens differ between schedules, so that each combination is frequent in some.
	weights []int

	// records are all versions of the account's record; only the last one may be replaced.
	records []map[string]Grant
	// retained are the amounts that are recorded with each.
	retained []map[string]map[string]Retained
	// lending: amounts are guaranteed. preemption: requests reclaim amounts from clusters with a lower priority.
	lending, preemption bool
	// drained counts machines that clusters have returned.
	drained   int
	clusters  map[string]*cluster
	names     []string
	operators []*operator
	seed      uint64
	ids       int
	trace     []func() string
}

type operator struct {
	// pending are the leases that it hasn't written since it recorded them, maybe long ago.
	pending []pendingLease
	partition
}

type pendingLease struct {
	cluster string
	grant   Grant
	// reclaims are what the cluster has to return.
	reclaims Reclaims
	account  int
}

// cluster is one control-plane namespace.
type cluster struct {
	name     string
	priority int32
	// leases are all versions of the lease object.
	leases []Lease
	// machines are all versions of the set of Machines, with what they take.
	machines []map[string]Amounts
	inFlight []creation
	reports  []lateReport
	// demand are the launches that pods call for.
	demand  map[string]Amounts
	process *process
	// leaving: it doesn't belong to the account any more. gone is since when nothing is left of it; zero if something is.
	leaving bool
	gone    time.Time
	vacancies
	partition
}

type creation struct {
	name    string
	charges Amounts
	until   time.Time
}

type lateReport struct {
	version int
	report  Report
	until   time.Time
}

// process is one process of Karpenter.
type process struct {
	holder *Holder
	from   time.Time
	// started and begun: it has read everything from the API server when it was started, and when it may begin.
	started, begun bool
	// seen are the versions of the lease and the machines that its caches have.
	lease, machines int
}

func newUniverse(t *testing.T, seed uint64, strict bool) *universe {
	u := &universe{
		T: t, random: rand.New(rand.NewPCG(seed, 7)), now: time.Unix(1_000_000, 0), seed: seed, strict: strict,
		limits:  Amounts{"reservation/cr-1": 10, "vcpus": 64, "gpus": 5},
		shapes:  []Amounts{{"reservation/cr-1": 1, "vcpus": 4}, {"vcpus": 4}, {"vcpus": 8, "gpus": 1}, {"reservation/cr-1": 1}},
		records: []map[string]Grant{{}}, retained: []map[string]map[string]Retained{nil}, clusters: map[string]*cluster{}, operators: []*operator{{}, {}},
	}
	u.preemption = u.random.IntN(2) > 0
	if u.random.IntN(3) > 0 {
		// Little of one thing, which all want.
		u.limits, u.shapes = Amounts{"reservation/cr-1": 3}, []Amounts{{"reservation/cr-1": 1}}
	}
	for range u.events() {
		u.weights = append(u.weights, []int{0, 1, 2, 6}[u.random.IntN(4)])
	}
	for _, name := range []string{"blue", "green", "red"} {
		u.join(name)
	}
	return u
}

// join adds a cluster whose Karpenter finds a lease that grants nothing yet.
func (u *universe) join(name string) {
	c := &cluster{name: name, priority: int32(u.random.IntN(3)), machines: []map[string]Amounts{{}}, demand: map[string]Amounts{}, vacancies: newVacancies()}
	c.process = &process{holder: NewHolder(u.now), from: u.now}
	c.leases = []Lease{{ID: u.id()}}
	u.clusters[name], u.names = c, append(u.names, name)
	u.say("%s joins", name)
}

func (u *universe) id() string { u.ids++; return fmt.Sprintf("id-%d", u.ids) }

func (u *universe) say(format string, args ...any) {
	now := u.now
	u.trace = append(u.trace, func() string { return now.Format("15:04:05 ") + fmt.Sprintf(format, args...) })
}

// recent is the number of one of the last versions, mostly the last.
func (u *universe) recent(versions int) int {
	if u.random.IntN(3) > 0 {
		return versions - 1
	}
	return max(0, versions-1-u.random.IntN(6))
}

// any returns a cluster of which something is left.
func (u *universe) any() *cluster {
	for {
		if c := u.clusters[u.names[u.random.IntN(len(u.names))]]; c.gone.IsZero() {
			return c
		}
	}
}

func used(machines map[string]Amounts) Amounts {
	sum := Amounts{}
	for _, charges := range machines {
		for pool, amount := range charges {
			sum.add(pool, amount)
		}
	}
	return sum
}

// decide lets an operator decide by what its caches have; only a decision by the newest record is recorded.
func (u *universe) decide(o *operator, fresh bool) {
	if o.isCut() {
		return
	}
	version, decision := u.computeDecision(fresh)
	u.record(o, version, decision)
}

// computeDecision runs Decide with what an operator's caches have. It returns the version of the record that it has decided by.
func (u *universe) computeDecision(fresh bool) (version int, decision Decision) {
	pick := u.recent
	if fresh {
		pick = func(versions int) int { return versions - 1 }
	}
	version = pick(len(u.records))
	account := Account{Limits: u.limits, Members: map[string]Member{}, Record: u.records[version], Preemption: u.preemption, Now: u.now, First: u.now.Unix()}
	account.Retained = u.retained[version]
	for _, name := range u.names {
		c := u.clusters[name]
		if !c.gone.IsZero() {
			account.Members[name] = Member{Leaving: true, Gone: !u.now.Before(c.gone.Add(InFlight))}
			continue
		}
		lease := c.leases[pick(len(c.leases))]
		if c.leaving {
			account.Members[name] = Member{Used: used(c.machines[pick(len(c.machines))]), Lease: &lease, Leaving: true}
			continue
		}
		account.Members[name] = Member{
			Priority: c.priority, Used: used(c.machines[pick(len(c.machines))]), Lease: &lease, Idle: !fresh && u.random.IntN(4) == 0,
			Guaranteed: Amounts{"gpus": 1}, Maximum: Amounts{"vcpus": 48},
		}
		if u.lending {
			u.lend(account.Members, name)
		}
	}
	decisions++
	return version, Decide(account)
}

// record lets an operator record what it has decided by a version of the record.
func (u *universe) record(o *operator, version int, decision Decision) {
	if version != len(u.records)-1 {
		return // the API server answers with a conflict
	}
	u.records = append(u.records, decision.Record)
	u.retained = append(u.retained, decision.Retained)
	for _, name := range u.names {
		if grant, ok := decision.Record[name]; ok {
			o.pending = append(o.pending, pendingLease{name, grant, decision.Reclaims[name], u.account})
		}
	}
	o.pending = o.pending[max(0, len(o.pending)-12):]
	u.say("recorded %v", decision.Record)
}

// write lets an operator write one lease by what it has recorded last, which may be long ago.
func (u *universe) write(o *operator, fresh bool) {
	if len(o.pending) == 0 || o.isCut() {
		return
	}
	i := u.random.IntN(len(o.pending))
	name, grant, reclaims, account := o.pending[i].cluster, o.pending[i].grant, o.pending[i].reclaims, o.pending[i].account
	o.pending = slices.Delete(o.pending, i, i+1)
	c := u.clusters[name]
	version := u.recent(len(c.leases))
	if fresh {
		version = len(c.leases) - 1
	}
	lease := c.leases[version]
	hint := lease.ID == grant.Lease && lease.Sequence == grant.Sequence && !reflect.DeepEqual(lease.Reclaims, reclaims)
	if !c.gone.IsZero() || !grant.Lag(lease) && !hint || version != len(c.leases)-1 || account != u.account {
		return
	}
	lease.Reclaims = reclaims
	if !hint {
		lease.Sequence, lease.Limit, lease.Granted = grant.Sequence, grant.Limit, grant.Granted
	}
	c.leases = append(c.leases, lease)
	u.say("lease of %s: %d %v", name, lease.Sequence, lease.Limit)
}

// lose lets the account be deleted with its record, and created again. Its operator takes over each lease before it reads it.
func (u *universe) lose() {
	for _, c := range u.clusters {
		if c.leases[len(c.leases)-1].Sequence == 0 {
			return // what was granted by a lease that is lost, too, can't be known
		}
	}
	u.account++
	for _, c := range u.clusters {
		c.leases = append(c.leases, c.leases[len(c.leases)-1])
	}
	u.records, u.retained = append(u.records, map[string]Grant{}), append(u.retained, nil)
	u.say("the record is lost")
	account := Account{Limits: u.limits, Members: map[string]Member{}, Record: u.records[len(u.records)-1], First: u.now.Unix()}
	for _, name := range u.names {
		c := u.clusters[name]
		lease := c.leases[len(c.leases)-1]
		account.Members[name] = Member{Used: used(c.machines[u.recent(len(c.machines))]), Lease: &lease}
	}
	u.records, u.retained = append(u.records, Decide(account).Record), append(u.retained, nil)
}

// begin lets a process read everything from the API server when it starts, and when it may launch. It reports whether the process has done so:
// without an API server, one that hasn't yet can do nothing.
func (u *universe) begin(c *cluster) bool {
	p := c.process
	begins := !p.begun && !u.now.Before(p.from)
	if p.started && !begins {
		return true
	}
	if c.isCut() {
		return false
	}
	before, last := c.machines[p.machines], len(c.machines)-1
	if !p.started {
		before = nil
	}
	p.started, p.begun = true, begins
	p.lease, p.machines = len(c.leases)-1, last
	lease := c.leases[p.lease]
	p.holder.Adopt(lease)
	for name := range before {
		if _, ok := c.machines[last][name]; !ok {
			p.holder.Gone(name, u.now)
		}
	}
	for name, charges := range c.machines[last] {
		p.holder.Exists(name, charges)
	}
	return true
}

// read lets a process read the lease and the machines from its caches, in any version since the last one.
func (u *universe) read(c *cluster, fresh bool) {
	if !u.begin(c) || c.isCut() {
		return
	}
	p := c.process
	lease := u.recent(len(c.leases))
	machines := p.machines + u.random.IntN(len(c.machines)-p.machines)
	if fresh {
		lease, machines = len(c.leases)-1, len(c.machines)-1
	}
	p.lease = lease // even an older one
	if !p.holder.Observe(c.leases[lease]) {
		p.lease = len(c.leases) - 1
		p.holder.Adopt(c.leases[p.lease])
	}
	for ; p.machines < machines; p.machines++ {
		before, after := c.machines[p.machines], c.machines[p.machines+1]
		for name := range before {
			if _, ok := after[name]; !ok {
				p.holder.Gone(name, u.now)
			}
		}
		for name, charges := range after {
			p.holder.Exists(name, charges)
		}
	}
}

// call for machines, as pods do.
func (u *universe) call(c *cluster) {
	if c.leaving {
		return
	}
	for range 1 + u.random.IntN(5) {
		c.demand[u.id()] = u.shapes[u.random.IntN(len(u.shapes))]
	}
}

// burst calls for machines and lets a process launch them at once.
func (u *universe) burst(c *cluster) {
	u.call(c)
	for range 5 {
		u.spend(c)
	}
}

// clear lets a process ask the API server what came of the launches that it gave up.
func (u *universe) clear(c *cluster) {
	if !u.begin(c) || c.isCut() {
		return
	}
	for _, name := range c.process.holder.Unclear(u.now) {
		if charges, exists := c.machines[len(c.machines)-1][name]; exists {
			c.process.holder.Exists(name, charges)
		} else {
			c.process.holder.Absent(name, u.now)
		}
	}
}

// spend lets a process launch for one of the demands.
func (u *universe) spend(c *cluster) {
	if !u.begin(c) || len(c.demand) == 0 {
		return
	}
	names := slices.Sorted(maps.Keys(c.demand))
	u.launch(c, names[u.random.IntN(len(names))])
}

func (u *universe) launch(c *cluster, name string) {
	charges := c.demand[name]
	vacancy := u.refill(c, name)
	if vacancy == "" && !c.process.holder.Spend(name, charges, u.now) {
		return
	}
	u.say("%s launches %s %v into the vacancy of %q", c.name, name, charges, vacancy)
	c.inFlight = append(c.inFlight, creation{name, charges, u.now.Add(time.Duration(u.random.Int64N(int64(InFlight))))})
}

// deliver lets one request to create a Machine have its effect, or be lost. While the cluster is cut off, it does neither.
func (u *universe) deliver(c *cluster, i int, lost bool) {
	if c.isCut() {
		return
	}
	created := c.inFlight[i]
	c.inFlight = slices.Delete(c.inFlight, i, i+1)
	last := c.machines[len(c.machines)-1]
	if _, exists := last[created.name]; exists || lost {
		return
	}
	next := maps.Clone(last)
	next[created.name] = created.charges
	c.machines = append(c.machines, next)
	delete(c.demand, created.name)
	u.say("%s has %s", c.name, created.name)
}

func (u *universe) remove(c *cluster) {
	last := c.machines[len(c.machines)-1]
	names := slices.Sorted(maps.Keys(last))
	if len(names) == 0 {
		return
	}
	next := maps.Clone(last)
	name := names[u.random.IntN(len(names))]
	delete(next, name)
	c.machines = append(c.machines, next)
	u.say("%s lost %s", c.name, name)
}

// report lets a process write its report. The write may come late, and conflicts with any other.
func (u *universe) report(c *cluster) {
	if !u.begin(c) {
		return
	}
	if report, ok := c.process.holder.Report(u.now); ok {
		c.reports = append(c.reports, lateReport{c.process.lease, report, u.now.Add(time.Duration(u.random.Int64N(int64(InFlight))))})
	}
}

func (u *universe) deliverReport(c *cluster, i int) {
	if c.isCut() {
		return
	}
	late := c.reports[i]
	c.reports = slices.Delete(c.reports, i, i+1)
	if late.version != len(c.leases)-1 {
		return
	}
	lease := c.leases[late.version]
	lease.Report = late.report
	c.leases = append(c.leases, lease)
	u.say("%s reports %+v", c.name, late.report)
}

// kill replaces a process. What it has sent may still have its effect.
func (u *universe) kill(c *cluster) {
	from := u.now.Add(InFlight)
	c.process = &process{holder: NewHolder(from), from: from}
	c.holders = map[string]string{}
	u.say("%s is killed", c.name)
}

// pass lets time pass. Requests have their effect in time or never.
func (u *universe) pass(d time.Duration) {
	u.now = u.now.Add(d)
	for _, name := range u.names {
		c := u.clusters[name]
		if c.isCut() {
			c.expire(u.now)
			continue
		}
		for i := len(c.inFlight) - 1; i >= 0; i-- {
			if !u.now.Before(c.inFlight[i].until) {
				u.deliver(c, i, u.random.IntN(3) == 0)
			}
		}
		for i := len(c.reports) - 1; i >= 0; i-- {
			if !u.now.Before(c.reports[i].until) {
				u.deliverReport(c, i)
			}
		}
	}
}

// mayCome is what a cluster's machines take, those included that may still come.
func mayCome(c *cluster) Amounts {
	machines := maps.Clone(c.machines[len(c.machines)-1])
	for _, created := range c.inFlight {
		charges := created.charges.clone()
		charges.Raise(machines[created.name])
		machines[created.name] = charges
	}
	return used(machines)
}

// check that nothing is exceeded.
func (u *universe) check() {
	record := u.records[len(u.records)-1]
	total, granted := Amounts{}, Amounts{}
	for _, name := range u.names {
		for pool, amount := range mayCome(u.clusters[name]) {
			total.add(pool, amount)
			if amount > record[name].Granted[pool] {
				u.fail("%s takes %d of %s, and is granted %d", name, amount, pool, record[name].Granted[pool])
			}
		}
		for pool, amount := range record[name].Granted {
			granted.add(pool, amount)
		}
	}
	for pool, limit := range u.limits {
		if u.strict && (total[pool] > limit || granted[pool] > limit && !u.lossy) {
			u.fail("%s: machines take %d and %d is granted of %d", pool, total[pool], granted[pool], limit)
		}
	}
}

func (u *universe) fail(format string, args ...any) {
	for _, line := range u.trace[max(0, len(u.trace)-40):] {
		u.Log(line())
	}
	u.Fatalf("seed %d: %s", u.seed, fmt.Sprintf(format, args...))
}

// events are what may happen, to any cluster and any operator.
func (u *universe) events() []func(c *cluster, o *operator) {
	return []func(c *cluster, o *operator){
		func(_ *cluster, o *operator) { u.decide(o, false) },
		func(_ *cluster, o *operator) { u.write(o, false) },
		func(c *cluster, _ *operator) { u.read(c, false) },
		func(c *cluster, _ *operator) { u.clear(c) },
		func(c *cluster, _ *operator) { u.spend(c) },
		func(c *cluster, _ *operator) {
			if len(c.inFlight) > 0 {
				u.deliver(c, u.random.IntN(len(c.inFlight)), u.random.IntN(8) == 0)
			}
		},
		func(c *cluster, _ *operator) { u.report(c) },
		func(c *cluster, _ *operator) {
			if len(c.reports) > 0 {
				u.deliverReport(c, u.random.IntN(len(c.reports)))
			}
		},
		func(c *cluster, _ *operator) { u.call(c) },
		func(c *cluster, _ *operator) { u.remove(c) },
		func(c *cluster, _ *operator) {
			for name := range c.demand {
				c.process.holder.Abandon(name, u.now)
				delete(c.demand, name)
			}
		},
		func(c *cluster, _ *operator) { u.kill(c) },
		func(_ *cluster, o *operator) { o.pending = nil }, // killed before it wrote its leases
		func(c *cluster, _ *operator) {
			// The lease is deleted; the operator makes an empty one.
			c.leases = append(c.leases, Lease{ID: u.id(), Available: u.limits})
			u.say("%s has a new lease", c.name)
		},
		func(c *cluster, _ *operator) {
			// A cache comes up with something old, just when more is called for.
			if !u.begin(c) || c.isCut() {
				return
			}
			c.process.holder.Observe(c.leases[u.random.IntN(len(c.leases))])
			u.burst(c)
		},
		func(c *cluster, o *operator) {
			// An operator writes what it has recorded long ago, and a process that begins then has nothing else.
			u.write(o, true)
			u.kill(c)
			u.pass(InFlight)
			u.burst(c)
		},
		func(*cluster, *operator) { u.pass(time.Duration(u.random.Int64N(int64(20 * time.Second)))) },
		func(*cluster, *operator) { u.pass(InFlight) },
	}
}

// happen lets one thing happen: something that may be stale, late or lost, or what happens when nothing is broken.
func (u *universe) happen() {
	c, o := u.any(), u.operators[u.random.IntN(len(u.operators))]
	if u.random.IntN(3) == 0 {
		u.proceed(c, o)
		return
	}
	sum := 0
	for _, weight := range u.weights {
		sum += weight
	}
	n := u.random.IntN(max(sum, 1))
	for i, event := range u.events() {
		if n -= u.weights[i]; n < 0 {
			event(c, o)
			return
		}
	}
}

// proceed lets one operator decide and write, and one Karpenter keep to its lease.
func (u *universe) proceed(c *cluster, o *operator) {
	if u.random.IntN(2) == 0 {
		if u.decide(o, true); u.random.IntN(4) == 0 {
			return // it is slow to write what it has decided
		}
		for len(o.pending) > 0 && !o.isCut() {
			u.write(o, true)
		}
		return
	}
	u.read(c, true)
	for range 2 {
		u.spend(c)
	}
	u.report(c)
	for len(c.reports) > 0 && !c.isCut() {
		u.deliverReport(c, 0)
	}
}

// settle lets everything happen in turn, as it does when nothing is broken.
func (u *universe) settle(rounds int) {
	for range rounds {
		for _, o := range u.operators {
			u.decide(o, true)
			for len(o.pending) > 0 {
				u.write(o, true)
			}
		}
		for _, name := range u.names {
			c := u.clusters[name]
			if u.depart(c); !c.gone.IsZero() {
				continue
			}
			u.read(c, true)
			u.clear(c)
			for u.drain(c) {
			}
			for _, name := range slices.Sorted(maps.Keys(c.demand)) {
				u.launch(c, name)
			}
			for len(c.inFlight) > 0 {
				u.deliver(c, 0, false)
			}
			u.read(c, true)
			u.report(c)
			for len(c.reports) > 0 {
				u.deliverReport(c, 0)
			}
			u.check()
		}
		u.pass(time.Second)
	}
}

// finish settles until attempts to launch what clusters have returned, and requests of Karpenters that have ended, count no more.
func (u *universe) finish() {
	for before := -1; before != u.drained; {
		before = u.drained
		u.settle(12)
		u.pass(2 * InFlight)
	}
	u.settle(12)
}

// exhaust connects all, ends all vacancies, and lets each cluster that stays request more than there is for it, until nothing changes.
func (u *universe) exhaust(demands ...Amounts) {
	u.heal()
	u.pass(max(2*InFlight, RequestTTL)) // until what was given up counts no more
	for _, name := range u.names {
		c := u.clusters[name]
		for len(c.holders) > 0 {
			u.end(c)
		}
		for range 6 {
			for _, charges := range demands {
				if !c.leaving {
					c.demand[u.id()] = charges
				}
			}
		}
	}
	u.finish()
}

func TestSchedules(t *testing.T) {
	t.Run("When anything happens in any order, it should never exceed a pool, and use all of it in the end", func(t *testing.T) {
		for seed := range *schedules {
			u := newUniverse(t, seed, true)
			for range 500 {
				u.happen()
				u.check()
			}
			u.exhaust(Amounts{"reservation/cr-1": 1}, Amounts{"vcpus": 4})
			u.full()
		}
	})
	t.Run("When the account is lost and created again meanwhile, it should exceed no pool either, and use all of it in the end", func(t *testing.T) {
		for seed := range *schedules / 3 {
			u := newUniverse(t, seed, true)
			u.lossy = true
			for i := range 500 {
				if i%150 == 149 {
					u.lose()
				}
				u.happen()
				u.check()
			}
			u.exhaust(Amounts{"reservation/cr-1": 1})
			u.full()
		}
	})
	t.Run("When limits change meanwhile, it should grant no more than the lower one once what was granted has returned", func(t *testing.T) {
		for seed := range *schedules / 3 {
			u := newUniverse(t, seed, false)
			for i := range 500 {
				if i%100 == 99 {
					u.limits = Amounts{"reservation/cr-1": u.random.Int64N(12), "vcpus": 16 + u.random.Int64N(64), "gpus": u.random.Int64N(5)}
				}
				before := u.records[len(u.records)-1]
				u.happen()
				u.check()
				u.neverMore(before, u.records[len(u.records)-1])
			}
		}
	})
}

// neverMore checks that a record that exceeds a limit grants no more of that pool than the one before.
func (u *universe) neverMore(before, after map[string]Grant) {
	sum := func(record map[string]Grant, pool string) (sum int64) {
		for _, grant := range record {
			sum += grant.Granted[pool]
		}
		return sum
	}
	for pool, limit := range u.limits {
		if now := sum(after, pool); now > limit && now > sum(before, pool) {
			u.fail("%s: %d is granted of %d, and %d was before", pool, now, limit, sum(before, pool))
		}
	}
}

// full checks that no demand that is left would fit.
func (u *universe) full() {
	total := Amounts{}
	for _, c := range u.clusters {
		for pool, amount := range used(c.machines[len(c.machines)-1]) {
			total.add(pool, amount)
		}
	}
	for _, name := range u.names {
		c := u.clusters[name]
		clusters := used(c.machines[len(c.machines)-1])
		for _, charges := range c.demand {
			fits := true
			for pool, amount := range charges {
				fits = fits && total[pool]+amount <= u.limits[pool] && (pool != "vcpus" || clusters[pool]+amount <= 48) && pool != "gpus"
			}
			if fits {
				u.fail("%s waits for %v although machines take %v of %v; record %+v", name, charges, total, u.limits, u.records[len(u.records)-1])
			}
		}
	}
}
