// SPDX-License-Identifier: Apache-2.0

package vacancy_test

import (
	"context"
	"maps"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/fleet/division"
	"github.com/autonode-io/autonode/fleet/karpenter/limit"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/vacancy"
)

const pool = "reservation/cr-1"

var reserved = capacity.Machine{Offering: capacity.Offering{InstanceType: "g5", CapacityType: karpv1.CapacityTypeReserved, Reservation: "cr-1"}}

// management is the management cluster: the lease of two machines, and the Machines.
type management struct {
	lease    limit.Lease
	machines map[string]capacity.Machine
}

func (m *management) Cached(context.Context) (*limit.Lease, error) {
	lease := m.lease
	return &lease, nil
}
func (m *management) Live(ctx context.Context) (*limit.Lease, error) { return m.Cached(ctx) }
func (m *management) First(context.Context) (bool, error)            { return true, nil }
func (m *management) Machines(context.Context) (map[string]capacity.Machine, error) {
	return maps.Clone(m.machines), nil
}

func (m *management) Machine(_ context.Context, name string) (capacity.Machine, bool, error) {
	machine, ok := m.machines[name]
	return machine, ok, nil
}

// process of Karpenter.
type process struct {
	*vacancy.Keeper
	*WithT
	t         *testing.T
	capacity  *limit.Provider
	inventory *inventory.Inventory
	clock     *clocktesting.FakeClock
	m         *management
}

func start(t *testing.T, m *management, clk *clocktesting.FakeClock) *process {
	t.Helper()
	p := &process{WithT: NewWithT(t), t: t, clock: clk, m: m}
	p.inventory = inventory.New(inventory.Config{Counted: func() bool { return true }, Clock: clk})
	p.capacity = limit.New(limit.Config{Clock: clk, Source: m})
	p.Keeper = vacancy.New(vacancy.Config{Clock: clk, Capacity: p.capacity, Inventory: p.inventory})
	for name := range m.machines {
		p.observe(name)
	}
	p.step()
	clk.Step(2 * division.InFlight)
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
	}}
}

// launch reports whether a NodeClaim's machine is launched, and whose vacancy it fills.
func (p *process) launch(name, nodePool string) (launched bool, replaces string) {
	done, took := p.capacity.Reserve(name, reserved, p.Holders(nodePool)...)
	if done == nil {
		return false, ""
	}
	replaces = p.Fill(claim(name, nodePool), took, "source", "cr-1")
	p.m.machines[name] = reserved
	p.observe(name)
	done()
	return true, replaces
}

func (p *process) observe(name string) {
	p.capacity.ObserveMachine(name, reserved)
	p.inventory.ObserveMachine(types.UID(name), inventory.Machine{Origin: inventory.Origin{Source: "source", Key: offering.Key{
		InstanceType: "g5", CapacityType: karpv1.CapacityTypeReserved, Reservation: "cr-1",
	}}})
}

func (p *process) gone(name string) {
	delete(p.m.machines, name)
	p.inventory.ForgetMachine(types.UID(name))
	p.capacity.ForgetMachine(name)
	p.Release(name)
}

func (p *process) held() int64 {
	report, ok := p.capacity.Report()
	p.Expect(ok).To(BeTrue())
	return report.Reserved[pool]
}

// grant plays the operator, which grants the cluster another amount.
func (p *process) grant(amount int64) {
	p.m.lease.Sequence++
	p.m.lease.Limit = division.Amounts{pool: amount}
	p.step()
}

// launched is a cluster with both machines of the reservation.
func launched(t *testing.T) *process {
	t.Helper()
	m := &management{machines: map[string]capacity.Machine{}, lease: limit.Lease{
		Account: "account-1", Rules: []division.Rule{{Pool: pool, Resource: capacity.Machines, Reservation: "cr-1"}},
		Lease: division.Lease{ID: "lease-1", Sequence: 1, Limit: division.Amounts{pool: 2}},
	}}
	p := start(t, m, clocktesting.NewFakeClock(time.Unix(1_000_000, 0)))
	for _, name := range []string{"a", "b"} {
		p.fills(name, "")
	}
	p.clock.Step(3 * division.InFlight)
	return p
}

// vacated is that cluster once machine a was terminated to make room for a replacement.
func vacated(t *testing.T) *process {
	t.Helper()
	p := launched(t)
	p.Hold(claim("a", "general"), full, false)
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
	t.Run("When the replacement fails before it is initialized, it should be held for the next one", func(t *testing.T) {
		p := vacated(t)
		p.fills("c", "a")
		p.clock.Step(3 * division.InFlight)
		p.Hold(claim("c", "general"), full, false)
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
	})
	t.Run("When a replacement is launched before the keeper has seen the Machine go, it should stay in the vacancy", func(t *testing.T) {
		p := launched(t)
		p.Hold(claim("a", "general"), full, false)
		p.inventory.ForgetMachine("a")
		delete(p.m.machines, "a")
		p.capacity.ForgetMachine("a")
		p.fills("c", "a")
		p.Release("a")
		p.Expect(p.All()).To(ConsistOf(HaveField("Filler", "c")))
	})
}
