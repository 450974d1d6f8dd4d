// SPDX-License-Identifier: Apache-2.0

package vacancy_test

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/vacancy"
)

const pool = "reservation/cr-1"

var reserved = capacity.Machine{Offering: capacity.Offering{InstanceType: "g5", CapacityType: karpv1.CapacityTypeReserved, Reservation: "cr-1"}}

// management is what outlives processes: the lease of two machines, the Machines, and what is written down.
type management struct {
	lease        capacityprovider.Lease
	machines     map[string]capacity.Machine
	replacements map[string]string
	text         string
	err          error
}

func (m *management) Cached(context.Context) (*capacityprovider.Lease, error) {
	lease := m.lease
	return &lease, nil
}
func (m *management) Live(ctx context.Context) (*capacityprovider.Lease, error) {
	if m.err != nil {
		return nil, m.err
	}
	return m.Cached(ctx)
}
func (m *management) First(context.Context) (bool, error) { return true, nil }
func (m *management) Machines(context.Context) (map[string]capacity.Machine, map[string]string, error) {
	machines := map[string]capacity.Machine{}
	for name, machine := range m.machines {
		machines[name] = machine
	}
	return machines, m.replacements, m.err
}

func (m *management) Machine(_ context.Context, name string) (capacity.Machine, bool, error) {
	machine, ok := m.machines[name]
	return machine, ok, m.err
}
func (m *management) Vacancies(context.Context) (string, error) { return m.text, m.err }
func (m *management) RememberVacancies(_ context.Context, text string) error {
	if m.err == nil {
		m.text = text
	}
	return m.err
}

// process of Karpenter.
type process struct {
	*vacancy.Keeper
	*WithT
	t         *testing.T
	capacity  *capacityprovider.Provider
	inventory *inventory.Inventory
	clock     *clocktesting.FakeClock
	m         *management
}

func start(t *testing.T, m *management, clk *clocktesting.FakeClock) *process {
	t.Helper()
	p := &process{WithT: NewWithT(t), t: t, clock: clk, m: m}
	p.inventory = inventory.New(inventory.Config{Counted: func() bool { return true }, Clock: clk})
	p.capacity = capacityprovider.New(capacityprovider.Config{Clock: clk, Source: m})
	p.Keeper = vacancy.New(vacancy.Config{Clock: clk, Capacity: p.capacity, Inventory: p.inventory, Memory: m})
	p.capacity.Vacancies = p.Kept
	for name := range m.machines {
		p.observe(name, "")
	}
	p.step()
	clk.Step(2 * capacity.InFlight)
	p.step()
	return p
}

func (p *process) step() {
	p.t.Helper()
	_, err := p.capacity.Step(p.t.Context())
	p.Expect(err).NotTo(HaveOccurred())
}

func claim(name, nodePool string) *karpv1.NodeClaim {
	return &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID(name), Labels: map[string]string{karpv1.NodePoolLabelKey: nodePool},
		Annotations: map[string]string{v1alpha1.TerminateFirstAnnotation: "no-reserved-capacity: reservation cr-1 is full"},
	}}
}

// launch reports whether a NodeClaim's machine is launched, and whose vacancy it fills.
func (p *process) launch(name, nodePool string) (launched bool, replaces string) {
	if !p.capacity.Spend(name, reserved, p.Of(nodePool)...) {
		return false, ""
	}
	replaces = p.Fill(claim(name, nodePool), "source", "cr-1")
	p.m.machines[name] = reserved
	if replaces != "" {
		p.m.replacements[replaces] = name
	}
	p.observe(name, replaces)
	p.capacity.Done(name)
	return true, replaces
}

func (p *process) observe(name, replaces string) {
	p.capacity.ObserveMachine(name, reserved)
	p.inventory.ObserveMachine(types.UID(name), inventory.Machine{Origin: inventory.Origin{Source: "source", Key: offering.Key{
		InstanceType: "g5", CapacityType: karpv1.CapacityTypeReserved, Reservation: "cr-1",
	}}})
	p.ObserveMachine(name, replaces)
}

func (p *process) gone(name string) {
	delete(p.m.machines, name)
	p.inventory.ForgetMachine(types.UID(name))
	p.capacity.ForgetMachine(name)
	p.Release(name)
}

func (p *process) held() int64 {
	_, report, ok := p.capacity.Report()
	p.Expect(ok).To(BeTrue())
	return report.Held[pool]
}

// grant plays the operator, which grants the cluster another amount.
func (p *process) grant(amount int64) {
	p.m.lease.Sequence++
	p.m.lease.Amounts = capacity.Amounts{pool: amount}
	p.step()
}

// full is a cluster with both machines of the reservation.
func full(t *testing.T) *process {
	t.Helper()
	m := &management{machines: map[string]capacity.Machine{}, replacements: map[string]string{}, lease: capacityprovider.Lease{
		Account: "account-1", Rules: []capacity.Rule{{Pool: pool, Resource: capacity.Machines, Reservation: "cr-1"}},
		Lease: capacity.Lease{ID: "lease-1", Sequence: 1, Amounts: capacity.Amounts{pool: 2}},
	}}
	p := start(t, m, clocktesting.NewFakeClock(time.Unix(1_000_000, 0)))
	for _, name := range []string{"a", "b"} {
		p.fills(name, "")
	}
	p.clock.Step(3 * capacity.InFlight)
	return p
}

// vacated is that cluster once machine a was terminated to make room for a replacement.
func vacated(t *testing.T) *process {
	t.Helper()
	p := full(t)
	p.Expect(p.Hold(t.Context(), claim("a", "general"))).To(Succeed())
	p.gone("a")
	return p
}

// fills launches a machine in place of another one.
func (p *process) fills(name, replaced string) {
	p.t.Helper()
	launched, replaces := p.launch(name, "general")
	p.Expect(launched).To(BeTrue())
	p.Expect(replaces).To(Equal(replaced))
}

// refused doesn't launch a machine.
func (p *process) refused(name, nodePool string) {
	p.t.Helper()
	launched, _ := p.launch(name, nodePool)
	p.Expect(launched).To(BeFalse())
}

func TestKeeper(t *testing.T) {
	t.Run("When another cluster requests what a terminated node has left, it should stay held for the replacement", func(t *testing.T) {
		p := vacated(t)
		p.grant(1) // the operator requests it back for the other one
		p.Expect(p.held()).To(Equal(int64(2)))
		p.refused("greedy", "other")
		p.fills("c", "a")
		p.End("a")
		p.refused("d", "general")
		p.Expect(p.held()).To(Equal(int64(2)), "two machines")
	})
	t.Run("When Karpenter restarts between termination and launch, it should still hold it", func(t *testing.T) {
		before := vacated(t)
		before.grant(1)
		p := start(t, before.m, before.clock)
		p.Settle(func(uid types.UID) bool { _, exists := p.inventory.Machine(uid); return exists })
		p.Expect(p.held()).To(Equal(int64(2)))
		own, _ := p.Count("general")
		p.Expect(own).To(Equal(1))
		p.fills("c", "a")
	})
	t.Run("When Karpenter restarts after the launch, it should hold it once", func(t *testing.T) {
		before := vacated(t)
		before.fills("c", "a")
		p := start(t, before.m, before.clock)
		p.ObserveMachine("c", "a")
		p.Expect(p.held()).To(Equal(int64(2)))
		p.Expect(p.All()).To(ConsistOf(HaveField("Filler()", "c")))
		p.refused("d", "general")
	})
	t.Run("When the replacement fails before it is initialized, it should be held for the next one", func(t *testing.T) {
		p := vacated(t)
		p.fills("c", "a")
		p.clock.Step(3 * capacity.InFlight)
		p.Expect(p.Hold(t.Context(), claim("c", "general"))).To(Succeed())
		p.gone("c")
		p.grant(1)
		p.Expect(p.All()).To(HaveLen(1))
		p.fills("d", "a")
	})
	t.Run("When it is held no longer, the operator should get it back", func(t *testing.T) {
		p := vacated(t)
		p.grant(1)
		p.End("a")
		p.Expect(p.held()).To(Equal(int64(1)))
		p.refused("c", "general")
		p.Expect(p.Save(t.Context())).To(Succeed())
		p.Expect(p.m.text).To(BeEmpty())
	})
	t.Run("When the management cluster is away, nothing should be removed, and launches wait until it is read", func(t *testing.T) {
		p := full(t)
		p.m.err = errors.New("away")
		p.Expect(p.Hold(t.Context(), claim("a", "general"))).To(MatchError(ContainSubstring("away")))
		p.m.err = nil
		p.Expect(p.Hold(t.Context(), claim("a", "general"))).To(Succeed())
		unread := vacancy.New(vacancy.Config{Clock: p.clock, Capacity: p.capacity, Inventory: p.inventory, Memory: p.m})
		p.Expect(unread.Open()).To(MatchError(vacancy.ErrUnread))
		p.Expect(unread.Load(t.Context())).To(Succeed())
		p.Expect(unread.Open()).To(Succeed())
	})
	t.Run("When the cluster comes to another account, nothing should be held in that", func(t *testing.T) {
		before := vacated(t)
		before.m.lease.Account, before.m.lease.Amounts = "account-2", capacity.Amounts{pool: 1}
		p := start(t, before.m, before.clock)
		p.Expect(p.held()).To(Equal(int64(1)))
	})
	t.Run("When nothing is launched into it, it should end after a bounded time", func(t *testing.T) {
		p := full(t)
		p.Expect(p.Hold(t.Context(), claim("a", "general"))).To(Succeed())
		v := p.All()[0]
		p.Expect(v.Expired(p.clock.Now().Add(vacancy.HoldTimeout))).To(BeFalse(), "its Machine is still there")
		p.gone("a")
		v = p.All()[0]
		p.Expect(v.Expired(p.clock.Now().Add(vacancy.HoldTimeout - time.Second))).To(BeFalse())
		p.Expect(v.Expired(p.clock.Now().Add(vacancy.HoldTimeout))).To(BeTrue())
	})
}
