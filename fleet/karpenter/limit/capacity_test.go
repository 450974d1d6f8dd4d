// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/fleet/conversion"
	"github.com/autonode-io/autonode/fleet/division"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
)

// management plays the management cluster: what the API server has, and what the cache has of the lease.
type management struct {
	live, cached *Lease
	machines     map[string]capacity.Machine
	first        bool
	err          error
	// asked counts requests.
	asked int
	// listing is called while Machines are listed.
	listing func()
}

func (m *management) Cached(context.Context) (*Lease, error) { return copyOf(m.cached), nil }
func (m *management) Live(context.Context) (*Lease, error)   { m.asked++; return copyOf(m.live), m.err }
func (m *management) First(context.Context) (bool, error)    { return m.first, m.err }

func (m *management) Machines(context.Context) (map[string]capacity.Machine, error) {
	m.asked++
	machines := map[string]capacity.Machine{}
	for name, machine := range m.machines {
		machines[name] = machine
	}
	if m.listing != nil {
		m.listing()
	}
	return machines, m.err
}

func (m *management) Machine(_ context.Context, name string) (capacity.Machine, bool, error) {
	m.asked++
	machine, ok := m.machines[name]
	return machine, ok, m.err
}

// memory plays what outlives processes.
type memory struct {
	governed bool
	err      error
	// read and written count.
	read, written int
}

func (m *memory) Governed(context.Context) (bool, error) {
	m.read++
	return m.governed, m.err
}

func (m *memory) Remember(_ context.Context, governed bool) error {
	m.written++
	if m.err == nil {
		m.governed = governed
	}
	return m.err
}

func copyOf(l *Lease) *Lease {
	if l == nil {
		return nil
	}
	c := *l
	return &c
}

type fixture struct {
	*WithT
	t *testing.T
	*Provider
	*management
	clock *clocktesting.FakeClock
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{WithT: NewWithT(t), t: t, management: &management{machines: map[string]capacity.Machine{}}, clock: clocktesting.NewFakeClock(time.Unix(1_000_000, 0))}
	f.Provider = New(Config{Clock: f.clock, Source: f.management})
	return f
}

func (f *fixture) step() {
	f.t.Helper()
	_, err := f.Step(f.t.Context())
	f.Expect(err).NotTo(HaveOccurred())
}

// fails takes a step that ends with an error.
func (f *fixture) fails(message string) {
	f.t.Helper()
	_, err := f.Step(f.t.Context())
	f.Expect(err).To(MatchError(ContainSubstring(message)))
	ctx, cancel := context.WithCancel(f.t.Context())
	cancel()
	f.Expect(f.Open(ctx)).To(HaveOccurred(), "it isn't known what may be launched")
}

// has sets the lease that the API server and the cache have.
func (f *fixture) has(l *Lease) { f.live, f.cached = l, l }

// grant lets the operator write the lease, and the cache report it.
func (f *fixture) grant(change func(*Lease)) {
	l := copyOf(f.live)
	l.Sequence++
	change(l)
	f.live, f.cached = l, l
}

var (
	reserved = capacity.Machine{Offering: capacity.Offering{InstanceType: "g5", Zone: "a", CapacityType: "reserved", Reservation: "cr-1"}, VCPUs: 8000, GPUs: 1}
	large    = capacity.Machine{Offering: capacity.Offering{InstanceType: "m5.large", Zone: "a", CapacityType: "on-demand"}, VCPUs: 2000}
	xlarge   = capacity.Machine{Offering: capacity.Offering{InstanceType: "m5.xlarge", Zone: "a", CapacityType: "on-demand"}, VCPUs: 4000}
	rules    = []division.Rule{
		{Pool: "reservation/cr-1", Resource: capacity.Machines, Reservation: "cr-1"},
		{Pool: "limit/cpu", Resource: capacity.VCPUs},
	}
)

func lease(sequence int64, amounts division.Amounts) *Lease {
	return &Lease{Lease: division.Lease{ID: "lease-1", Sequence: sequence, Limit: amounts}, ResourceVersion: "1", Account: "account-1", Rules: rules}
}

// leased is a provider that has begun with a lease and no Machines.
func leased(t *testing.T, amounts division.Amounts) *fixture {
	t.Helper()
	f := newFixture(t)
	f.first = true
	f.has(lease(5, amounts))
	f.step()
	f.Expect(f.Open(t.Context())).To(Succeed())
	return f
}

// spent launches a machine whose Machine comes.
func (f *fixture) spent(name string, m capacity.Machine) {
	f.t.Helper()
	f.Expect(f.Spend(name, m)).NotTo(BeNil())
	f.done(name)
	f.machines[name] = m
	f.ObserveMachine(name, m)
}

// changedSince returns the instance types that have changed, in order.
func (f *fixture) changedSince(sequence uint64) []string {
	f.t.Helper()
	f.Sequence()
	names, known := f.Since(sequence)
	f.Expect(known).To(BeTrue())
	slices.Sort(names)
	return slices.Compact(names)
}

func TestWithoutLease(t *testing.T) {
	t.Run("When there is no lease, it should limit nothing and ask the API server once", func(t *testing.T) {
		f := newFixture(t)
		f.step()
		f.Expect(f.Open(t.Context())).To(Succeed())
		for i := range 100 {
			f.spent(fmt.Sprint(i), large)
		}
		f.step()
		f.Expect(f.asked).To(Equal(1))
		f.Expect(f.Offer(large, 0.1)).To(Equal(capacity.Offer{Available: true, Remaining: capacity.Unlimited, Price: 0.1, Saving: 0.1}))
		f.Expect(f.Sequence()).To(BeZero())
		_, ok := f.Report()
		f.Expect(ok).To(BeFalse())
	})
	t.Run("When leases aren't served, it should limit nothing", func(t *testing.T) {
		f := newFixture(t)
		f.err = fmt.Errorf("%w: forbidden", ErrUnserved)
		f.step()
		f.Expect(f.Open(t.Context())).To(Succeed())
	})
	t.Run("When the API server doesn't answer, it should launch nothing", func(t *testing.T) {
		f := newFixture(t)
		f.err = errors.New("timeout")
		f.fails("timeout")
	})
	t.Run("When there is no source, it should limit nothing", func(t *testing.T) {
		p := New(Config{Clock: clocktesting.NewFakeClock(time.Now())})
		NewWithT(t).Expect(p.Open(t.Context())).To(Succeed())
		NewWithT(t).Expect(p.Fits("a", large) && p.Spend("a", large) != nil).To(BeTrue())
		p.done("a")
		p.Abandon("a", false)
	})
	t.Run("When launches end without a Machine, it should forget them", func(t *testing.T) {
		f := newFixture(t)
		f.step()
		f.Expect(f.Spend("abandoned", large) != nil && f.Spend("idle", large) != nil).To(BeTrue())
		f.done("abandoned")
		f.done("idle")
		f.Abandon("abandoned", false)
		for range 3 {
			f.clock.Step(idleTTL)
			f.step()
		}
		f.Expect(f.launches).To(BeEmpty())
	})
}

func TestBeginning(t *testing.T) {
	t.Run("When a process succeeds another, it should launch nothing before what that tried has come", func(t *testing.T) {
		f := newFixture(t)
		f.has(lease(5, division.Amounts{"reservation/cr-1": 2, "limit/cpu": 100_000}))
		f.machines["old"] = reserved
		f.step()
		var succeeding *SucceedingError
		f.Expect(errors.As(f.Open(t.Context()), &succeeding)).To(BeTrue())
		f.Expect(succeeding.Until).To(Equal(f.clock.Now().Add(division.InFlight)))
		f.Expect(f.Spend("new", reserved)).To(BeNil())
		f.Expect(f.Offer(reserved, 1).Remaining).To(Equal(1), "and show what the lease leaves all the same")
		_, ok := f.Report()
		f.Expect(ok).To(BeFalse())

		f.machines["late"] = reserved // the other's, and the cache hasn't reported it
		f.clock.Step(division.InFlight)
		f.Expect(f.Open(t.Context())).To(MatchError(ErrUnread))
		f.step()
		f.Expect(f.Open(t.Context())).To(Succeed())
		f.Expect(f.Spend("new", reserved)).To(BeNil())
		report, ok := f.Report()
		f.Expect(ok).To(BeTrue())
		f.Expect(report.Reserved["reservation/cr-1"]).To(Equal(int64(2)))
	})
	t.Run("When it is said to be the first and a report exists, it should wait", func(t *testing.T) {
		f := newFixture(t)
		f.first = true
		f.live = lease(5, nil)
		f.live.Status.AcknowledgedSequence = 4
		f.step()
		f.Expect(f.Open(t.Context())).To(BeAssignableToTypeOf(&SucceedingError{}))
	})
	t.Run("When nothing is granted yet, it should launch nothing and show offerings as before", func(t *testing.T) {
		f := newFixture(t)
		f.first = true
		f.has(lease(0, nil))
		f.step()
		f.Expect(f.Open(t.Context())).To(MatchError(ErrUngranted))
		f.Expect(f.Offer(large, 1).Available).To(BeTrue())
		sequence := f.Sequence()
		f.grant(func(l *Lease) { l.Limit = division.Amounts{} })
		f.step()
		f.Expect(f.Open(t.Context())).To(Succeed())
		f.Expect(f.Offer(large, 1).Available).To(BeFalse())
		_, known := f.Since(sequence)
		f.Expect(known).To(BeFalse(), "all have changed")
	})
	t.Run("When a new lease has no pools yet, it should launch nothing before the first grant", func(t *testing.T) {
		f := newFixture(t)
		f.first = true
		f.has(&Lease{Lease: division.Lease{ID: "lease-1"}, Account: "account-1"})
		f.step()
		f.Expect(f.Open(t.Context())).To(MatchError(ErrUngranted))
		f.Expect(f.Spend("a", large)).To(BeNil())
		f.grant(func(*Lease) {})
		f.step()
		f.Expect(f.Spend("a", large)).NotTo(BeNil(), "the account has no pools")
	})
	t.Run("When the first lease appears later, it should count what was launched before and may still come", func(t *testing.T) {
		f := newFixture(t)
		f.step()
		f.clock.Step(division.InFlight)
		f.spent("exists", large)
		f.Expect(f.Spend("tried", large)).NotTo(BeNil())
		f.has(lease(1, division.Amounts{"limit/cpu": 6000}))
		f.step()
		f.Expect(f.Open(t.Context())).To(Succeed())
		f.Expect(f.Spend("fits", large)).NotTo(BeNil())
		f.Expect(f.Spend("doesn't", large)).To(BeNil())
		report, _ := f.Report()
		f.Expect(report).To(Equal(division.Report{Sequence: 1, Reserved: division.Amounts{"limit/cpu": 6000}, Used: division.Amounts{"limit/cpu": 6000}}))
	})
	t.Run("When Machines went shortly before the cluster joined, they should count until their requests have had their effect", func(t *testing.T) {
		f := newFixture(t)
		f.step()
		f.clock.Step(division.InFlight)
		f.spent("gone", large)
		f.ForgetMachine("gone")
		delete(f.machines, "gone")
		f.has(lease(1, division.Amounts{"limit/cpu": 2000}))
		f.step()
		f.Expect(f.Spend("next", large)).To(BeNil(), "an attempt of the first may still have its effect")
		f.clock.Step(division.InFlight)
		f.step()
		f.Expect(f.Spend("next", large)).NotTo(BeNil())
	})
	t.Run("When a Machine is deleted while Machines are listed, it should not count it", func(t *testing.T) {
		f := newFixture(t)
		f.live, f.cached = lease(1, division.Amounts{"limit/cpu": 6000}), lease(1, nil)
		f.machines["a"] = large
		f.listing = func() { f.ForgetMachine("a") }
		f.step()
		f.Expect(f.launches).To(BeEmpty())
	})
	t.Run("When the cache never reports a listed Machine, it should ask again whether it exists", func(t *testing.T) {
		f := newFixture(t)
		f.has(lease(1, division.Amounts{"limit/cpu": 2000}))
		f.machines["a"] = large
		f.step()
		delete(f.machines, "a")
		f.clock.Step(division.InFlight)
		f.step() // begins, and lists none
		f.clock.Step(division.InFlight)
		f.step()
		f.Expect(f.launches).To(BeEmpty())
		f.Expect(f.Spend("b", large)).NotTo(BeNil())
	})
}

func TestMissing(t *testing.T) {
	// successor is a process whose predecessor kept to a lease, or to none.
	successor := func(t *testing.T, governed bool) (*fixture, *memory) {
		f, m := newFixture(t), &memory{governed: governed}
		f.Memory = m
		return f, m
	}
	t.Run("When the lease was deleted before a process begins, it should launch nothing until the operator has created it again", func(t *testing.T) {
		f, _ := successor(t, true)
		f.step()
		f.Expect(f.Open(t.Context())).To(MatchError(ErrMissing))
		f.Expect(f.Fits("a", large) || f.Spend("a", large) != nil).To(BeFalse())
		grant, _ := f.Request("a", large)
		f.Expect(grant).To(Equal(capacityprovider.GrantImpossible))
		f.clock.Step(division.InFlight)
		f.step()
		f.Expect(f.Open(t.Context())).To(MatchError(ErrMissing), "however long it takes")
		f.live = lease(9, division.Amounts{"limit/cpu": 2000})
		f.step() // the cache needn't have reported it
		f.Expect(f.Open(t.Context())).To(Succeed())
		f.Expect(f.Spend("a", large)).NotTo(BeNil())
		f.Expect(f.Spend("b", large)).To(BeNil())
	})
	t.Run("When an API server has read no roles yet, it should launch nothing", func(t *testing.T) {
		f, _ := successor(t, true)
		f.err = fmt.Errorf("%w: forbidden", ErrUnserved)
		f.step()
		f.Expect(f.Open(t.Context())).To(MatchError(ErrMissing))
	})
	t.Run("When it can't be read whether there was a lease, it should launch nothing", func(t *testing.T) {
		f, m := successor(t, false)
		m.err = errors.New("timeout")
		f.fails("timeout")
	})
	t.Run("When there never was a lease, it should limit nothing and ask once", func(t *testing.T) {
		f, m := successor(t, false)
		f.step()
		f.step()
		f.Expect(f.Open(t.Context())).To(Succeed())
		f.Expect(f.Spend("a", large)).NotTo(BeNil())
		f.Expect(m).To(HaveValue(Equal(memory{read: 1})))
	})
	t.Run("When there is a lease, it should remember that once, before it launches", func(t *testing.T) {
		f, m := successor(t, false)
		f.first = true
		f.has(lease(5, division.Amounts{"limit/cpu": 2000}))
		m.err = errors.New("conflict")
		f.fails("conflict")
		m.err = nil
		f.step()
		f.grant(func(l *Lease) { l.Limit = division.Amounts{"limit/cpu": 4000} })
		f.step()
		f.Expect(f.Spend("a", xlarge)).NotTo(BeNil())
		f.Expect(m).To(HaveValue(Equal(memory{governed: true, written: 2})))
	})
	t.Run("When the operator releases the cluster, it should remember that", func(t *testing.T) {
		f, m := successor(t, true)
		f.first = true
		f.has(lease(5, nil))
		f.step()
		f.grant(func(l *Lease) { l.Account, l.Rules, l.Limit = "", nil, nil })
		f.step()
		f.Expect(m.governed).To(BeFalse())
		f.Expect(f.Spend("a", large)).NotTo(BeNil())
	})
	t.Run("When a lease is deleted while its process runs, it should keep to it and ask nothing", func(t *testing.T) {
		f, m := successor(t, false)
		f.first = true
		f.has(lease(5, division.Amounts{"limit/cpu": 2000}))
		f.step()
		f.has(nil)
		f.step()
		f.Expect(f.Spend("a", large)).NotTo(BeNil())
		f.Expect(f.Spend("b", large)).To(BeNil())
		f.Expect(m.read).To(BeZero())
	})
}

func TestSpend(t *testing.T) {
	t.Run("When the lease is used up, it should request more until that is granted", func(t *testing.T) {
		f := leased(t, division.Amounts{"reservation/cr-1": 1, "limit/cpu": 100_000})
		f.spent("a", reserved)
		f.Expect(f.Fits("b", reserved)).To(BeFalse())
		grant, _ := f.Request("b", reserved)
		f.Expect(grant).To(Equal(capacityprovider.GrantImpossible), "nothing more might be granted")
		f.Expect(f.Exhausted()).To(Equal("reservation/cr-1"))
		f.grant(func(l *Lease) { l.Available = division.Amounts{"reservation/cr-1": 2, "limit/cpu": 100_000} })
		f.step()
		grant, lacking := f.Request("b", reserved)
		f.Expect(grant).To(Equal(capacityprovider.GrantAwaited))
		f.Expect(lacking).To(Equal("reservation/cr-1"))
		f.clock.Step(time.Second)
		again, _ := f.Request("b", reserved)
		f.Expect(again).To(Equal(capacityprovider.GrantAwaited))
		report, _ := f.Report()
		f.Expect(report.Requests).To(Equal([]division.Request{{Charges: division.Amounts{"reservation/cr-1": 1, "limit/cpu": 8000}, Count: 1}}))

		done := make(chan struct{})
		go func() {
			defer close(done)
			f.Await(t.Context(), time.Minute)
		}()
		f.Eventually(func() bool {
			f.grant(func(l *Lease) { l.Limit = division.Amounts{"reservation/cr-1": 2, "limit/cpu": 100_000} })
			f.step()
			select {
			case <-done:
				return true
			default:
				return false
			}
		}).Should(BeTrue())
		f.Expect(f.Spend("b", reserved)).NotTo(BeNil())
		report, _ = f.Report()
		f.Expect(report.Requests).To(BeEmpty())
	})
	t.Run("When a launch fails for good, it should keep what it takes until the API server has no Machine", func(t *testing.T) {
		f := leased(t, division.Amounts{"limit/cpu": 2000})
		f.Expect(f.Spend("a", large)).NotTo(BeNil())
		f.Abandon("a", false) // under way: nothing is known of it yet
		f.clock.Step(division.InFlight)
		f.step()
		f.Expect(f.Fits("b", large)).To(BeFalse())
		f.done("a")
		f.Abandon("a", false)
		f.step()
		f.Expect(f.Fits("b", large)).To(BeFalse())
		f.clock.Step(division.InFlight)
		f.machines["a"] = large
		f.step()
		f.Expect(f.Fits("b", large)).To(BeFalse(), "its Machine came after all")
		f.ObserveMachine("a", large)
		delete(f.machines, "a")
		f.ForgetMachine("a")
		f.Expect(f.Fits("b", large)).To(BeFalse(), "an attempt may make it again")
		f.clock.Step(2 * division.InFlight)
		f.step()
		f.Expect(f.Fits("b", large)).To(BeTrue())
	})
	t.Run("When a Machine goes while it is created again, it should count that attempt", func(t *testing.T) {
		f := leased(t, division.Amounts{"limit/cpu": 2000})
		f.spent("a", large)
		f.Expect(f.Spend("a", large)).NotTo(BeNil())
		f.clock.Step(5 * division.InFlight)
		delete(f.machines, "a")
		f.ForgetMachine("a")
		f.step()
		f.Expect(f.Fits("b", large)).To(BeFalse())
		f.done("a")
		f.clock.Step(2*division.InFlight - 1)
		f.step()
		f.Expect(f.Fits("b", large)).To(BeFalse())
		f.clock.Step(1)
		f.step()
		f.Expect(f.Fits("b", large)).To(BeTrue())
	})
	t.Run("When a lease is deleted or made again without a grant, it should keep to what was granted", func(t *testing.T) {
		f := leased(t, division.Amounts{"limit/cpu": 2000})
		granted := f.live
		f.has(nil)
		f.step()
		f.Expect(f.Fits("a", xlarge)).To(BeFalse())
		f.Expect(f.Fits("a", large)).To(BeTrue())
		again := &Lease{Lease: division.Lease{ID: "lease-2"}, ResourceVersion: "9"}
		f.has(again)
		f.step()
		f.cached = granted // an older one
		f.step()
		f.Expect(f.Fits("a", xlarge)).To(BeFalse())
		report, _ := f.Report()
		f.Expect(f.Lease().ResourceVersion).To(Equal("9"))
		f.Expect(report.Sequence).To(Equal(int64(5)))
		f.grant(func(l *Lease) {
			l.Sequence, l.Account, l.Rules, l.Limit = 6, "account-1", rules, division.Amounts{"limit/cpu": 4000}
		})
		f.step()
		f.Expect(f.Fits("a", xlarge)).To(BeTrue())
	})
	t.Run("When a lease has no pools any more, it should limit nothing", func(t *testing.T) {
		f := leased(t, division.Amounts{"limit/cpu": 2000})
		f.Expect(f.Offer(xlarge, 1).Available).To(BeFalse())
		f.grant(func(l *Lease) { l.Account, l.Rules, l.Limit = "", nil, nil })
		f.step()
		f.Expect(f.Spend("a", xlarge)).NotTo(BeNil())
		f.Expect(f.Offer(xlarge, 1).Available).To(BeTrue())
	})
	t.Run("When an older lease comes late, it should ignore it", func(t *testing.T) {
		f := leased(t, division.Amounts{"limit/cpu": 4000})
		old := f.live
		f.grant(func(l *Lease) { l.Limit = division.Amounts{"limit/cpu": 2000} })
		f.step()
		f.cached = old
		f.step()
		f.Expect(f.Fits("a", xlarge)).To(BeFalse())
	})
	t.Run("When a rule changes, it should charge what runs by the new one", func(t *testing.T) {
		f := leased(t, division.Amounts{"limit/cpu": 4000})
		f.spent("a", large)
		f.grant(func(l *Lease) {
			l.Rules, l.Limit = []division.Rule{{Pool: "limit/machines", Resource: capacity.Machines}}, division.Amounts{"limit/machines": 2}
		})
		f.step()
		f.Expect(f.Spend("b", xlarge)).NotTo(BeNil())
		f.Expect(f.Spend("c", large)).To(BeNil())
	})
}

func TestOffer(t *testing.T) {
	t.Run("When a machine is launched or goes, it should change only the offers that it concerns", func(t *testing.T) {
		f := leased(t, division.Amounts{"reservation/cr-1": 2, "limit/cpu": 14_000})
		f.Expect(f.Offer(reserved, 1).Remaining).To(Equal(2))
		f.Expect(f.Offer(large, 1).Available && f.Offer(xlarge, 1).Available).To(BeTrue())
		sequence := f.Sequence()
		f.spent("a", large) // 12,000 left: any fits
		f.Expect(f.changedSince(sequence)).To(BeEmpty())
		f.spent("b", reserved) // 4,000 left
		f.Expect(f.changedSince(sequence)).To(Equal([]string{"g5"}))
		f.Expect(f.Offer(reserved, 1)).To(Equal(capacity.Offer{Full: true, Remaining: 1, Price: 1, Saving: 1}))
		sequence = f.Sequence()
		f.spent("c", large) // 2,000 left: xlarge doesn't fit
		f.Expect(f.changedSince(sequence)).To(Equal([]string{"m5.xlarge"}))
		sequence = f.Sequence()
		f.clock.Step(2 * division.InFlight)
		f.ForgetMachine("c")
		f.Expect(f.changedSince(sequence)).To(Equal([]string{"m5.xlarge"}))
		f.Expect(f.Offer(xlarge, 1).Available).To(BeTrue())
	})
	t.Run("When a reservation ends, it should launch nothing in it", func(t *testing.T) {
		f := leased(t, division.Amounts{"reservation/cr-1": 2, "limit/cpu": 100_000})
		end := f.clock.Now().Add(time.Hour)
		f.grant(func(l *Lease) { l.Expires = map[string]time.Time{"reservation/cr-1": end} })
		f.step()
		f.Expect(f.Offer(reserved, 1).Available).To(BeTrue())
		f.Expect(f.Offer(large, 1).Available).To(BeTrue())
		sequence := f.Sequence()
		f.clock.SetTime(end)
		f.Expect(f.changedSince(sequence)).To(Equal([]string{"g5"}))
		f.Expect(f.Offer(reserved, 1)).To(Equal(capacity.Offer{Expired: true, Price: 1, Saving: 1}))
		f.Expect(f.Spend("a", reserved)).To(BeNil())
	})
	t.Run("When another cluster finds no capacity, it should be unavailable for that time", func(t *testing.T) {
		f := leased(t, division.Amounts{"reservation/cr-1": 2, "limit/cpu": 100_000})
		b := large
		b.Zone = "b"
		for _, m := range []capacity.Machine{large, xlarge, b, reserved} {
			f.Expect(f.Offer(m, 1).Available).To(BeTrue())
		}
		sequence := f.Sequence()
		until := f.clock.Now().Add(time.Minute)
		f.grant(func(l *Lease) {
			l.Unavailable = []division.Unavailable{{InstanceType: "m5.l*", Zone: "b", Until: until.Add(time.Minute)}, {InstanceType: "m5.xlarge", CapacityType: "on-demand", Until: until}}
		})
		f.step()
		f.Expect(f.changedSince(sequence)).To(Equal([]string{"m5.large", "m5.xlarge"}))
		f.Expect(f.Offer(large, 1).Available).To(BeTrue())
		f.Expect(f.Offer(b, 1).Available || f.Offer(xlarge, 1).Available).To(BeFalse())
		sequence = f.Sequence()
		f.clock.SetTime(until)
		f.Expect(f.changedSince(sequence)).To(Equal([]string{"m5.xlarge"}))
		f.Expect(f.Offer(xlarge, 1).Available).To(BeTrue())
		f.clock.SetTime(until.Add(time.Minute))
		f.Sequence()
		f.Expect(f.Offer(b, 1).Available).To(BeTrue())
	})
	t.Run("When machines are committed, it should price another one and one less by what is unused", func(t *testing.T) {
		f := leased(t, division.Amounts{"limit/cpu": 100_000})
		f.Expect(f.Offer(large, 0.1).Price).To(Equal(0.1))
		f.Expect(f.Offer(xlarge, 0.2).Price).To(Equal(0.2))
		committed := func(instances float64, runs int64) func(*Lease) {
			return func(l *Lease) {
				l.Commitments = conversion.Committed{
					Commitments: []division.Commitment{{Name: "reserved", Kind: division.ReservedInstance, InstanceType: "m5.large", Instances: instances}},
					Machines:    []division.Group{{Priced: capacity.Priced{Machine: large, Price: 0.1}, Count: runs}},
				}
			}
		}
		near := func(got, want float64) { t.Helper(); f.Expect(math.Abs(got - want)).To(BeNumerically("<", 1e-9)) }
		f.grant(committed(1, 0))
		f.step()
		near(f.Offer(large, 0.1).Price, 0.1*division.MinPriceFraction)
		f.Expect(f.Offer(xlarge, 0.2).Price).To(Equal(0.2))
		sequence := f.Sequence()
		f.grant(committed(1, 1))
		f.step()
		f.Expect(f.changedSince(sequence)).To(Equal([]string{"m5.large"}))
		f.Expect(f.Offer(large, 0.1).Price).To(Equal(0.1))
		near(f.Offer(large, 0.1).Saving, 0)
		f.grant(committed(1, 2))
		f.step()
		near(f.Offer(large, 0.1).Saving, 0.1)
	})
	t.Run("When a hundred launches come at once, it should reserve what one committed machine leaves once", func(t *testing.T) {
		f := leased(t, division.Amounts{"limit/cpu": 10_000_000})
		f.grant(func(l *Lease) {
			l.Rules = []division.Rule{{Pool: "limit/cpu", Resource: capacity.VCPUs}}
			l.Commitments = conversion.Committed{Commitments: []division.Commitment{{Name: "ri", Kind: division.ReservedInstance, InstanceType: "m5.xlarge", Instances: 1}}}
		})
		f.step()
		chosen := map[string]int{}
		launch := func(name string) {
			x, l := f.Offer(xlarge, 0.20), f.Offer(large, 0.10)
			m := large
			if x.Price < l.Price {
				m = xlarge
			}
			chosen[m.InstanceType]++
			f.Expect(f.Spend(name, m)).NotTo(BeNil())
		}
		for i := range 100 {
			launch(fmt.Sprint("n", i))
		}
		f.Expect(chosen).To(Equal(map[string]int{"m5.xlarge": 1, "m5.large": 99}))
		// The operator has counted it and another cluster's, and there are three now: a machine that was counted isn't added again.
		f.grant(func(l *Lease) {
			ri := l.Commitments.Commitments[0]
			ri.Instances = 3
			l.Commitments = conversion.Committed{
				Commitments: []division.Commitment{ri}, Counted: map[capacity.Offering]int64{{InstanceType: "m5.xlarge", CapacityType: xlarge.CapacityType}: 1},
				Machines: []division.Group{{Priced: capacity.Priced{Machine: xlarge, Price: 0.20}, Count: 2}},
			}
		})
		f.step()
		f.Expect(f.Offer(xlarge, 0.20).Price).To(BeNumerically("<", 0.001))
		launch("next")
		f.Expect(f.Offer(xlarge, 0.20).Price).To(Equal(0.20))
		// Its launch fails for good, so that it is there again.
		f.done("next")
		f.Abandon("next", false)
		f.clock.SetTime(f.clock.Now().Add(division.InFlight))
		f.step()
		f.Expect(f.Offer(xlarge, 0.20).Price).To(BeNumerically("<", 0.001))
	})
	t.Run("When nothing changes, it should answer without allocating", func(t *testing.T) {
		f := leased(t, division.Amounts{"limit/cpu": 100_000})
		f.Offer(large, 0.1)
		if n := testing.AllocsPerRun(100, func() { f.Sequence(); f.Offer(large, 0.1) }); n != 0 {
			t.Errorf("%g allocations", n)
		}
	})
}
