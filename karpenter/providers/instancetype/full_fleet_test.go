// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"slices"
	"testing"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/capacity"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

func TestFull(t *testing.T) {
	m, _ := leasedMarket(t, 4)
	key := offering.Key{InstanceType: "t-1", Zone: "b", CapacityType: karpv1.CapacityTypeOnDemand}
	machineOf := func(key offering.Key) capacity.Machine {
		choice, _ := m.cached().ResolveKey(key)
		return capacityprovider.MachineOf(key, choice.Template)
	}
	open := func(machine Vacated) (opened []string, full Full) {
		snapshot := m.cached()
		instanceTypes, full := snapshot.Without(machine, m.Capacity, snapshot.InstanceTypes)
		for i, it := range instanceTypes {
			if slices.ContainsFunc(it.Offerings, func(o *karpcloudprovider.Offering) bool {
				return o.Launchable() && !slices.Contains(snapshot.InstanceTypes[i].Offerings, o)
			}) {
				opened = append(opened, it.Name)
			}
		}
		return opened, full
	}
	t.Run("When nothing is full, a machine's removal should open nothing", func(t *testing.T) {
		if opened, full := open(Vacated{NodeClaim: "a", Key: key}); full != 0 || len(opened) > 0 {
			t.Errorf("got %v %d", opened, full)
		}
	})
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"} {
		if done, _ := m.Capacity.Reserve(name, machineOf(key)); done == nil {
			break
		}
	}
	t.Run("When the lease leaves no room, a machine's removal should open what fits into what it took", func(t *testing.T) {
		choice, _ := m.cached().ResolveKey(key)
		if choice.Offering.Available || choice.Full != FullLease {
			t.Fatalf("got %+v", choice)
		}
		if opened, full := open(Vacated{NodeClaim: "a", Key: key}); full != FullLease || !slices.Contains(opened, "t-1") {
			t.Errorf("got %v %d", opened, full)
		}
		if opened, _ := open(Vacated{NodeClaim: "another's", Key: key}); len(opened) > 0 {
			t.Errorf("what took nothing opens %v", opened)
		}
	})
	t.Run("When an offering has failed as well, it should stay closed", func(t *testing.T) {
		m.Unavailable.MarkExhausted(key, "InsufficientCapacity")
		if choice, _ := m.cached().ResolveKey(key); choice.Full != 0 {
			t.Errorf("got %+v", choice)
		}
		m.Unavailable.Clear(key)
		if choice, _ := m.cached().ResolveKey(key); choice.Full != FullLease {
			t.Errorf("got %+v", choice)
		}
	})
	t.Run("When a reservation is full, it should be available and have no capacity", func(t *testing.T) {
		in := reservedIn("t-1", "b", "r-1-b")
		m.machines.ObserveMachine("r", inventory.Machine{Origin: inventory.Origin{Key: in}})
		o := offeringAt(m.cached(), in)
		if !o.Available || o.ReservationCapacity != 0 || o.Launchable() {
			t.Errorf("got %+v", o)
		}
		if opened, _ := open(Vacated{NodeClaim: "r", Key: in}); slices.Contains(opened, "t-1") {
			t.Error("core counts its slots")
		}
	})
}
