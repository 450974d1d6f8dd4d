// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/fleet/division"
)

// schedules may be many more after a change: go test ./fleet/karpenter/limit -run TestSchedules -schedules 20000 -timeout 0
var schedules = flag.Uint64("schedules", 300, "how many random schedules to play")

// world is a management cluster with one Karpenter after the other, each of which may be slow, stale, or dead at any moment.
type world struct {
	*testing.T
	seed   uint64
	random *rand.Rand
	clock  *clocktesting.FakeClock

	leases []*Lease
	// deleted: the API server has no lease until the next one is written.
	deleted bool
	memory  memory
	// asked is what the newest lease declares, and granted the most that machines may take until it is acknowledged.
	asked, granted division.Amounts
	sequence       int64

	machines map[string]capacity.Machine
	events   []event
	inFlight []creation
	reports  []lateReport
	process  *process
	trace    []string
	filled   int
}

// event is a change of a Machine, as a cache learns it.
type event struct {
	name    string
	machine capacity.Machine
	gone    bool
}

type creation struct {
	name    string
	machine capacity.Machine
	until   time.Time
}

type lateReport struct {
	version string
	report  division.Report
	until   time.Time
}

// process is one process of Karpenter: what its caches have, and the launches that it attempts now.
type process struct {
	*Provider
	w        *world
	lease    int
	events   int
	attempts map[string]capacity.Machine
	// vacancies are the launches that vacancies are kept for.
	vacancies []string
}

var scheduleRules = []division.Rule{
	{Pool: "reservation/cr-1", Resource: capacity.Machines, Reservation: "cr-1"},
	{Pool: "quota/vcpus", Resource: capacity.VCPUs},
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		T: t, seed: seed, random: rand.New(rand.NewPCG(seed, 11)), clock: clocktesting.NewFakeClock(time.Unix(1_000_000, 0)),
		asked: division.Amounts{}, granted: division.Amounts{}, machines: map[string]capacity.Machine{},
	}
	w.write("id-0", 0)
	w.start()
	return w
}

func (w *world) say(format string, args ...any) {
	w.trace = append(w.trace, w.clock.Now().Format("15:04:05 ")+fmt.Sprintf(format, args...))
}

// write writes a lease object.
func (w *world) write(id string, sequence int64) {
	w.deleted = false
	w.leases = append(w.leases, &Lease{
		Lease: division.Lease{ID: id, Sequence: sequence, Limit: maps.Clone(w.asked), Available: division.Amounts{"reservation/cr-1": 5, "quota/vcpus": 40_000}}, ResourceVersion: fmt.Sprint(len(w.leases)), Account: "account-1",
		Rules: scheduleRules,
	})
	if len(w.leases) > 1 {
		w.leases[len(w.leases)-1].Status = w.leases[len(w.leases)-2].Status
	}
	w.say("lease %s, sequence %d: %v", id, sequence, w.asked)
}

// start starts a process. Its caches have what was there a while ago.
func (w *world) start() {
	p := &process{w: w, lease: max(0, len(w.leases)-1-w.random.IntN(3)), events: max(0, len(w.events)-w.random.IntN(4)), attempts: map[string]capacity.Machine{}}
	p.Provider = New(Config{Clock: w.clock, Source: p, Memory: &w.memory})
	w.process = p
	machines := map[string]capacity.Machine{}
	for _, e := range w.events[:p.events] {
		if delete(machines, e.name); !e.gone {
			machines[e.name] = e.machine
		}
	}
	for name, m := range machines {
		p.ObserveMachine(name, m)
	}
	w.step()
	w.say("another process")
}

func (w *world) step() { _, _ = w.process.Step(context.Background()) }

// Cached implements Source.
func (p *process) Cached(context.Context) (*Lease, error) {
	if p.w.deleted && p.lease == len(p.w.leases)-1 {
		return nil, nil //nolint:nilnil // see Source
	}
	return copyOf(p.w.leases[p.lease]), nil
}

// Live implements Source. Much may happen between two requests.
func (p *process) Live(context.Context) (*Lease, error) {
	live := copyOf(p.w.leases[len(p.w.leases)-1])
	if p.w.deleted {
		live = nil
	}
	p.w.interfere()
	if p.w.random.IntN(10) == 0 {
		return nil, context.DeadlineExceeded
	}
	return live, nil
}

// Machines implements Source.
func (p *process) Machines(context.Context) (map[string]capacity.Machine, error) {
	machines := maps.Clone(p.w.machines)
	p.w.interfere()
	return machines, nil
}

// Machine implements Source.
func (p *process) Machine(_ context.Context, name string) (capacity.Machine, bool, error) {
	m, ok := p.w.machines[name]
	p.w.interfere()
	return m, ok, nil
}

// First implements Source.
func (p *process) First(context.Context) (bool, error) { return p.w.sequence == 0, nil }

// interfere lets Machines come and go, and caches report it.
func (w *world) interfere() {
	switch w.random.IntN(4) {
	case 0:
		w.deliver()
	case 1:
		w.remove()
	case 2:
		w.observe()
	}
}

func (w *world) launch() {
	p := w.process
	if !p.isKnown || p.Open(context.Background()) != nil {
		return
	}
	name := fmt.Sprint("m-", w.random.IntN(12))
	m := []capacity.Machine{reserved, large, xlarge}[w.random.IntN(3)]
	if _, attempted := p.attempts[name]; attempted {
		return
	}
	done, vacancy := p.Reserve(name, m, p.vacancies...)
	if done == nil {
		p.Request(name, m)
		return
	}
	if i := slices.Index(p.vacancies, vacancy); i >= 0 {
		p.vacancies[i] = name
		w.filled++
	}
	w.say("launches %s as %s", name, m.InstanceType)
	p.attempts[name] = m
	w.send(name)
}

// send lets an attempt send a request.
func (w *world) send(name string) {
	w.inFlight = append(w.inFlight, creation{name, w.process.attempts[name], w.clock.Now().Add(time.Duration(w.random.Int64N(int64(division.InFlight))))})
}

// attempt lets an attempt send another request, or end.
func (w *world) attempt() {
	for _, name := range slices.Sorted(maps.Keys(w.process.attempts)) {
		switch w.random.IntN(4) {
		case 0:
			w.send(name)
		case 1:
			delete(w.process.attempts, name)
			w.process.done(name)
			if w.random.IntN(2) == 0 {
				w.process.Abandon(name, false)
				w.say("abandons %s", name)
			}
		}
	}
}

// deliver lets one request have its effect, or be lost.
func (w *world) deliver() {
	if len(w.inFlight) > 0 {
		w.arrive(w.random.IntN(len(w.inFlight)))
	}
}

func (w *world) arrive(i int) {
	c := w.inFlight[i]
	w.inFlight = slices.Delete(w.inFlight, i, i+1)
	if _, exists := w.machines[c.name]; exists || w.random.IntN(5) == 0 {
		return
	}
	w.machines[c.name] = c.machine
	w.events = append(w.events, event{name: c.name, machine: c.machine})
	w.say("%s comes as %s", c.name, c.machine.InstanceType)
}

// terminate lets the process remove a Machine before it launches the replacement.
func (w *world) terminate() {
	names := slices.Sorted(maps.Keys(w.machines))
	if len(names) == 0 || len(w.process.vacancies) > 3 {
		return
	}
	name := names[w.random.IntN(len(names))]
	if slices.Contains(w.process.vacancies, name) || !w.process.holder.Tracks(name) {
		return
	}
	w.process.Keep(name)
	w.process.vacancies = append(w.process.vacancies, name)
	w.say("keeps what %s takes", name)
	if w.random.IntN(4) > 0 {
		delete(w.machines, name)
		w.events = append(w.events, event{name: name, gone: true})
	}
}

// end lets the process keep a vacancy no longer.
func (w *world) end() {
	if p := w.process; len(p.vacancies) > 0 {
		p.Release(p.vacancies[0])
		w.say("keeps the vacancy of %s no longer", p.vacancies[0])
		p.vacancies = p.vacancies[1:]
	}
}

func (w *world) remove() {
	names := slices.Sorted(maps.Keys(w.machines))
	if len(names) == 0 {
		return
	}
	name := names[w.random.IntN(len(names))]
	delete(w.machines, name)
	w.events = append(w.events, event{name: name, gone: true})
	w.say("%s goes", name)
}

// observe lets the cache report some changes.
func (w *world) observe() {
	for p := w.process; p.events < len(w.events) && w.random.IntN(4) > 0; p.events++ {
		if e := w.events[p.events]; e.gone {
			p.ForgetMachine(e.name)
		} else {
			p.ObserveMachine(e.name, e.machine)
		}
	}
}

func (w *world) read() {
	w.process.lease = max(0, len(w.leases)-1-w.random.IntN(2))
	w.step()
}

func (w *world) report() {
	lease := w.process.Lease()
	if report, ok := w.process.Report(); ok {
		w.reports = append(w.reports, lateReport{lease.ResourceVersion, report, w.clock.Now().Add(time.Duration(w.random.Int64N(int64(division.InFlight))))})
	}
}

func (w *world) receive(i int) {
	late := w.reports[i]
	w.reports = slices.Delete(w.reports, i, i+1)
	last := w.leases[len(w.leases)-1]
	if w.deleted || late.version != last.ResourceVersion {
		return
	}
	next := copyOf(last)
	next.ResourceVersion, next.Status.AcknowledgedSequence = fmt.Sprint(len(w.leases)), late.report.Sequence
	w.leases = append(w.leases, next)
	if late.report.Sequence == w.sequence && last.Sequence == w.sequence {
		for pool, granted := range w.granted {
			w.granted[pool] = min(granted, max(w.asked[pool], late.report.Reserved[pool]))
		}
		w.say("acknowledged %d: granted %v", w.sequence, w.granted)
	}
}

// decide lets the operator grant more or ask for something back, or the lease be deleted and made again.
func (w *world) decide() {
	id := w.leases[len(w.leases)-1].ID
	if w.deleted || w.random.IntN(10) == 0 {
		if !w.deleted && w.random.IntN(2) == 0 {
			w.deleted = true
			w.say("lease %s is deleted", id)
			return
		}
		asked := w.asked
		w.asked = division.Amounts{}
		w.write(id+"'", 0)
		w.asked = asked
		return
	}
	w.sequence++
	w.asked = division.Amounts{"reservation/cr-1": w.random.Int64N(4), "quota/vcpus": w.random.Int64N(5) * 8000}
	w.granted.Raise(w.asked)
	w.write(id, w.sequence)
}

func (w *world) pass() {
	w.clock.Step(time.Duration(w.random.Int64N(int64(40 * time.Second))))
	now := w.clock.Now()
	for i := len(w.inFlight) - 1; i >= 0; i-- {
		if !now.Before(w.inFlight[i].until) {
			w.arrive(i)
		}
	}
	for i := len(w.reports) - 1; i >= 0; i-- {
		if !now.Before(w.reports[i].until) {
			w.receive(i)
		}
	}
}

// check that machines which exist or may still come take no more than is granted.
func (w *world) check() {
	takes := map[string]division.Amounts{}
	for name, m := range w.machines {
		takes[name] = division.Charges(scheduleRules, m)
	}
	for _, c := range w.inFlight {
		if takes[c.name] == nil {
			takes[c.name] = division.Amounts{}
		}
		takes[c.name].Raise(division.Charges(scheduleRules, c.machine))
	}
	total := division.Amounts{}
	for _, charges := range takes {
		for pool, amount := range charges {
			total[pool] += amount
		}
	}
	for pool, amount := range total {
		if amount > w.granted[pool] {
			for _, line := range w.trace[max(0, len(w.trace)-40):] {
				w.Log(line)
			}
			w.Fatalf("seed %d: machines take %d of %s, and %d is granted", w.seed, amount, pool, w.granted[pool])
		}
	}
}

func TestSchedules(t *testing.T) {
	t.Run("When processes are slow, stale and killed, it should never have more machines than is granted, and use what is", func(t *testing.T) {
		launched, filled := 0, 0
		for seed := range *schedules {
			w := newWorld(t, seed)
			events := []func(){
				w.launch, w.launch, w.launch, w.attempt, w.attempt, w.deliver, w.observe, w.observe, w.read, w.read, w.step, w.report, w.pass, w.pass, w.remove, w.decide, w.terminate, w.terminate, w.end,
				func() {
					if len(w.reports) > 0 {
						w.receive(w.random.IntN(len(w.reports)))
					}
				},
			}
			for range 400 {
				if w.random.IntN(60) == 0 {
					w.start()
				}
				events[w.random.IntN(len(events))]()
				w.check()
			}
			launched += len(w.events)
			filled += w.filled
		}
		if launched < int(*schedules)*10 {
			t.Errorf("%d machines came and went in %d schedules", launched, *schedules)
		}
		if filled < int(*schedules)/5 {
			t.Errorf("%d vacancies were filled in %d schedules", filled, *schedules)
		}
	})
}
