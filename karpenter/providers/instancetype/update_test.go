// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"fmt"
	"math/rand/v2"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// cached returns the snapshot of the one node class.
func cached(t *testing.T, store *Provider) *Snapshot {
	t.Helper()
	snapshot, err := store.Cached("default")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return snapshot
}

func TestUpdateIsShared(t *testing.T) {
	const templates = 100
	spot := func(i int) offering.Key {
		return offering.Key{InstanceType: fmt.Sprintf("t-%d", i), Zone: "a", CapacityType: karpv1.CapacityTypeSpot}
	}
	for name, tc := range map[string]struct {
		change func(*offering.Unavailable, *inventory.Inventory)
		// resolved is how many instance types are built again.
		resolved int
	}{
		"When an offering fails, it should resolve its instance type only": {
			func(u *offering.Unavailable, _ *inventory.Inventory) { u.Mark(spot(7), "NoHosts") }, 1,
		},
		"When another node class's offering fails, it should resolve nothing": {
			func(u *offering.Unavailable, _ *inventory.Inventory) {
				u.Mark(offering.Key{InstanceType: "other"}, "NoHosts")
			}, 0,
		},
		"When a quota is exhausted, it should resolve all": {
			func(u *offering.Unavailable, _ *inventory.Inventory) {
				u.MarkExceeded(spot(7), quota("spot t-8"), -1, "QuotaExceeded")
			}, templates,
		},
		"When a zone is exhausted, it should resolve all": {
			func(u *offering.Unavailable, _ *inventory.Inventory) {
				for i := range 4 {
					u.MarkExhausted(spot(i), "InsufficientCapacity")
				}
			}, templates,
		},
		"When a source is full, it should resolve its instance type only": {
			func(_ *offering.Unavailable, i *inventory.Inventory) {
				i.ObserveMachine("sixth", inventory.Machine{Origin: madeFrom(environment.FleetTemplate(7), "a")})
			}, 1,
		},
		"When a machine comes as what is no longer offered, it should resolve its instance type only": {
			func(_ *offering.Unavailable, i *inventory.Inventory) {
				i.ObserveMachine("old", inventory.Machine{Origin: madeFrom(environment.FleetTemplate(7), DefaultZone)})
			}, 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			store, unavailable, machines, _ := fleet(templates)
			before := cached(t, store)
			for range before.Cheapest(before.InstanceTypes, nil, nil, "") {
				break
			}
			tc.change(unavailable, machines)
			after := cached(t, store)
			resolved := 0
			for i, it := range after.InstanceTypes {
				if before.InstanceTypes[i] != it {
					resolved++
				}
			}
			if resolved != tc.resolved || len(after.InstanceTypes) != templates {
				t.Errorf("%d of %d instance types resolved again, want %d", resolved, len(after.InstanceTypes), tc.resolved)
			}
			order := after.order.Load()
			NewWithT(t).Expect(order).To(HaveValue(Equal(offering.OrderOf(after.InstanceTypes))), "the order of the offerings stays")
		})
	}
}

// quota of a family, of which it isn't known what it counts.
func quota(name string) offering.Quota {
	return offering.Quota{QuotaName: capacity.QuotaName{Name: name}}
}

func TestUpdateEqualsBuild(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprintf("When things change at random (seed %d), it should be what a new build is", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			store, unavailable, machines, clk := fleet(8)
			setPartial(store, nodeClass(2), templatesOf(store), manyZones(), template.Gaps{All: true})
			zones, capacityTypes := []string{"a", "b", "c", "d", DefaultZone}, []string{karpv1.CapacityTypeOnDemand, karpv1.CapacityTypeSpot}
			for range 200 {
				key := offering.Key{
					InstanceType: fmt.Sprintf("t-%d", random.IntN(10)), Zone: zones[random.IntN(len(zones))], CapacityType: capacityTypes[random.IntN(2)],
				}
				nodeClaim, source := types.UID(fmt.Sprint(random.IntN(30))), environment.FleetSource(random.IntN(10))
				switch random.IntN(9) {
				case 0:
					unavailable.Mark(key, "NoHosts")
				case 6:
					unavailable.MarkExceeded(key, quota(fmt.Sprintf("%s t-%d", key.CapacityType, random.IntN(10))), -1, "QuotaExceeded")
				case 8:
					unavailable.Share([]offering.ClosedQuota{{QuotaName: quota(key.CapacityType + " " + key.InstanceType).QuotaName, Until: clk.Now().Add(offering.BaseTTL)}})
				case 7:
					unavailable.MarkExhausted(key, "InsufficientCapacity")
				case 1:
					clk.Step(offering.BaseTTL / 2)
				case 2, 3:
					machines.ObserveMachine(nodeClaim, inventory.Machine{Origin: inventory.Origin{Source: source, Key: key, Price: random.Float64()}, ProviderID: string(nodeClaim)})
				case 4:
					machines.ForgetMachine(nodeClaim)
				case 5:
					machines.ObserveNode(string(nodeClaim), inventory.Node{
						ProviderID: string(nodeClaim), Capacity: inventory.Amounts{Memory: random.Int64N(4 << 30)}, Allocatable: inventory.Amounts{Memory: random.Int64N(4 << 30)},
					})
				}
				if random.IntN(3) > 0 {
					continue
				}
				snapshot := cached(t, store)
				value, _ := store.entries.Load("default")
				built := snapshotOf(value.(*entry).builder.Input)
				NewWithT(t).Expect(describe(snapshot)).To(BeComparableTo(describe(built)))
			}
		})
	}
}

// templatesOf returns what the one node class selects.
func templatesOf(store *Provider) []template.Template {
	value, _ := store.entries.Load("default")
	return value.(*entry).templates()
}

// describe writes what a snapshot offers, with the observed memory and why templates are unavailable.
func describe(s *Snapshot) []string {
	lines := offered(s.InstanceTypes)
	for _, it := range s.InstanceTypes {
		lines = append(lines, fmt.Sprintf("%s: %s, %v", it.Name, it.Capacity.Memory(), it.Overhead))
	}
	for i := range 10 {
		source := environment.FleetSource(i)
		lines = append(lines, source+": "+s.Unavailable(source))
	}
	for i := range 10 {
		for candidate := range s.Cheapest(s.InstanceTypes, nil, nil, fmt.Sprint(i)) {
			lines = append(lines, fmt.Sprint(candidate.Key(), candidate.Offering.Price))
		}
	}
	return lines
}
