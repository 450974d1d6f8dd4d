// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"math"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/fleet/conversion"
	"github.com/autonode-io/autonode/fleet/division"
	"github.com/autonode-io/autonode/fleet/karpenter/leasetest"
	"github.com/autonode-io/autonode/fleet/karpenter/limit"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// leasedMarket is a market of a cluster with a lease of 10 vCPUs, 3 machines of reservation r-1-b, and any number of machines.
func leasedMarket(tb testing.TB, types int) (*market, *leasetest.Lease) {
	tb.Helper()
	m := newMarket(tb, types, nil)
	g := leasetest.NewLease(tb, m.clock, []division.Rule{
		{Pool: "reservation/r-1-b", Resource: capacity.Machines, Reservation: "r-1-b"},
		{Pool: "limit/cpu", Resource: capacity.VCPUs},
		{Pool: "limit/machines", Resource: capacity.Machines},
	}, division.Amounts{"reservation/r-1-b": 3, "limit/cpu": 10_000, "limit/machines": 1_000_000})
	m.Capacity = g.Limiter
	m.refresh()
	return m, g
}

func TestLease(t *testing.T) {
	m, g := leasedMarket(t, 100)
	key, onDemand := reservedIn("t-1", "b", "r-1-b"), offering.Key{InstanceType: "t-1", Zone: "b", CapacityType: karpv1.CapacityTypeOnDemand}
	machineOf := func(key offering.Key) capacity.Machine {
		choice, _ := m.cached().ResolveKey(key)
		return capacityprovider.MachineOf(key, choice.Template)
	}
	t.Run("When the lease has less than the catalog, it should offer what the lease leaves", func(t *testing.T) {
		if o := offeringAt(m.cached(), key); !o.Available || o.ReservationCapacity != 3 {
			t.Errorf("got %+v", o)
		}
	})
	t.Run("When a type is larger than what the lease leaves, it should be unavailable", func(t *testing.T) {
		for _, it := range m.cached().InstanceTypes {
			fits := it.Capacity.Cpu().Value() <= 10
			if available := len(it.Offerings.Available()) > 0; available != fits {
				t.Errorf("%s with %s vCPUs: available %t", it.Name, it.Capacity.Cpu(), available)
			}
		}
	})
	t.Run("When a machine of the reservation is launched, it should resolve its type and those that don't fit any more", func(t *testing.T) {
		before := m.cached()
		done, _ := m.Capacity.Reserve("a", machineOf(key))
		NewWithT(t).Expect(done).NotTo(BeNil(), "refused")
		after := m.cached()
		if o := offeringAt(after, key); !o.Available || o.ReservationCapacity != 2 {
			t.Errorf("got %+v", o)
		}
		left := 10 - after.InstanceTypes[slices.IndexFunc(after.InstanceTypes, func(it *karpcloudprovider.InstanceType) bool { return it.Name == "t-1" })].Capacity.Cpu().Value()
		for _, name := range renewed(before, after) {
			at, _ := after.at(name)
			if cpu := after.InstanceTypes[at].Capacity.Cpu().Value(); name != "t-1" && (cpu <= left || cpu > 10) {
				t.Errorf("%s with %d vCPUs was resolved", name, cpu)
			}
		}
	})
	t.Run("When one of a few committed machines runs, it should price it apart from another one", func(t *testing.T) {
		list := offeringAt(m.cached(), onDemand).Price
		source := m.templatesOf(t)["t-1"]
		m.machines.ObserveMachine("runs", inventory.Machine{Origin: inventory.Origin{Source: source, Key: onDemand, Price: list}})
		before := m.cached()
		g.Write(t, func(l *limit.Lease) {
			l.Commitments = conversion.Committed{
				Commitments: []division.Commitment{{Name: "ri", Kind: division.ReservedInstance, InstanceType: "t-1", Instances: 1}},
				Machines: []division.Group{{Count: 1, Priced: capacity.Priced{Price: list, Machine: capacity.Machine{
					Offering: capacity.Offering{InstanceType: "t-1", CapacityType: karpv1.CapacityTypeOnDemand}, VCPUs: 1000,
				}}}},
			}
		})
		after := m.cached()
		NewWithT(t).Expect(renewed(before, after)).To(Equal([]string{"t-1"}))
		it := after.InstanceTypes[1]
		if price, ok := it.OfferingPrice("b", karpv1.CapacityTypeOnDemand); !ok || price != 0 {
			t.Errorf("the node costs %v of %v", price, list)
		}
		choice, _ := after.ResolveKey(onDemand)
		if choice.Offering.Price != list || choice.ListPrice != list || !choice.Offering.Available {
			t.Errorf("another one costs %v of %v", choice.Offering.Price, choice.ListPrice)
		}
	})
	t.Run("When commitments are unused, it should lower the price and keep the list price", func(t *testing.T) {
		list := offeringAt(m.cached(), onDemand).Price
		g.Write(t, func(l *limit.Lease) {
			l.Commitments.Commitments = slices.Clone(l.Commitments.Commitments)
			l.Commitments.Commitments[0].Instances = 2
		})
		choice, _ := m.cached().ResolveKey(onDemand)
		if math.Abs(choice.Offering.Price-list/1000) > 1e-9 || choice.ListPrice != list {
			t.Errorf("costs %v of %v", choice.Offering.Price, choice.ListPrice)
		}
	})
	t.Run("When prices change by commitments, it should make no machine drift", func(t *testing.T) {
		NewWithT(t).Expect(m.cached().Gone(m.templatesOf(t)["t-1"], onDemand)).To(BeFalse(), "it is gone")
	})
	t.Run("When a reservation ends, it should launch nothing in it and price its nodes as on-demand ones, without drift", func(t *testing.T) {
		source := m.templatesOf(t)["t-1"]
		m.machines.ObserveMachine("reserved", inventory.Machine{Origin: inventory.Origin{Source: source, Key: key, Price: 0.001}})
		end := m.clock.Now().Add(time.Hour)
		g.Write(t, func(l *limit.Lease) {
			l.Commitments, l.Expires = conversion.Committed{}, map[string]time.Time{"reservation/r-1-b": end}
		})
		price := func() float64 {
			price, ok := m.cached().InstanceTypes[1].OfferingPrice("b", karpv1.CapacityTypeReserved)
			NewWithT(t).Expect(ok).To(BeTrue(), "there is no reserved offering")
			return price
		}
		onDemandPrice := offeringAt(m.cached(), onDemand).Price
		if o := offeringAt(m.cached(), key); !o.Available || price() != o.Price || o.Price == onDemandPrice {
			t.Errorf("before: %+v, a node costs %v", o, price())
		}
		m.clock.SetTime(end)
		if o := offeringAt(m.cached(), key); o.Available || price() != onDemandPrice {
			t.Errorf("after: %+v, a node costs %v of %v", o, price(), onDemandPrice)
		}
		NewWithT(t).Expect(m.cached().Gone(source, key)).To(BeFalse(), "its nodes drift")
	})
	t.Run("When it is handed out, it should cost no allocation", m.costsNoAllocation)
}
