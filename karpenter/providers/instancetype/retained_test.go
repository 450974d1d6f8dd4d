// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// machinesOf are running machines of these origins.
func machinesOf(origins ...inventory.Origin) *inventory.Inventory {
	machines := newInventory()
	for i, origin := range origins {
		id := fmt.Sprint(i)
		machines.ObserveNode(id, inventory.Node{ProviderID: id, Zone: origin.NodeZone})
		machines.ObserveMachine(types.UID(id), inventory.Machine{Origin: origin, ProviderID: id})
	}
	return machines
}

// newInventory returns one that has counted no machine.
func newInventory() *inventory.Inventory {
	return inventory.New(inventory.Config{Counted: func() bool { return true }, Clock: clock.RealClock{}})
}

// madeFrom is a machine that cost $0.5 as spot, made from the source of a template.
func madeFrom(tmpl template.Template, zone string) inventory.Origin {
	return inventory.Origin{
		Source: tmpl.Source.Annotation(),
		Key:    offering.Key{InstanceType: tmpl.InstanceType, Zone: zone, CapacityType: karpv1.CapacityTypeSpot},
		Price:  0.5,
	}
}

// inNodeZone is a machine whose Node has another zone.
func inNodeZone(o inventory.Origin, zone string) inventory.Origin {
	o.NodeZone = zone
	return o
}

// offered writes instance types as <type>: <zone> <capacity type> $<price>, with an exclamation mark for what isn't available.
func offered(its []*karpcloudprovider.InstanceType) []string {
	var lines []string
	for _, it := range its {
		for _, o := range it.Offerings {
			line := fmt.Sprintf("%s: %s %s $%g", it.Name, o.Zone(), o.CapacityType(), o.Price)
			if !o.Available {
				line += " !"
			}
			lines = append(lines, line)
		}
	}
	return lines
}

func TestKept(t *testing.T) {
	c4 := newTemplate("c4", 4, 0.1, func(s *template.Template) { s.SpotPrice = ptr.To(0.03) })
	c8 := newTemplate("c8", 8, 0.2, nil)
	now := []string{"c4: a on-demand $0.1", "c4: a spot $0.03", "c4: b on-demand $0.1", "c4: b spot $0.03"}
	zoneless := []string{"c4: default on-demand $0.1", "c4: default spot $0.03"}
	for name, tc := range map[string]struct {
		machine inventory.Origin
		change  func(*Input)
		want    []string
	}{
		"When what a machine was made as is offered, it should add nothing": {madeFrom(c4, "a"), func(*Input) {}, now},
		"When the Cluster has begun to tell zones, it should keep the machine's, at what it would cost now": {
			madeFrom(c4, DefaultZone), func(*Input) {}, append(slices.Clone(now), "c4: default spot $0.03 !"),
		},
		"When the Cluster has ceased to tell zones, it should keep the machine's": {
			madeFrom(c4, "a"), func(in *Input) { in.Cluster.FailureDomains = nil }, append(slices.Clone(zoneless), "c4: a spot $0.03 !"),
		},
		"When there are no zones and a cloud controller sets the Node's, that should have the machine's price": {
			inNodeZone(madeFrom(c4, DefaultZone), "eu-1a"), func(in *Input) { in.Cluster.FailureDomains = nil }, append(slices.Clone(zoneless), "c4: eu-1a spot $0.03 !"),
		},
		"When the Cluster has begun to declare the zones that Nodes had already, it should keep none twice": {
			inNodeZone(madeFrom(c4, DefaultZone), "a"), func(*Input) {}, append(slices.Clone(now), "c4: default spot $0.03 !"),
		},
		"When nothing at all could be read, it should keep the type": {
			madeFrom(c8, "a"), func(in *Input) { in.Gaps.All, in.Templates = true, nil }, []string{"c8: a spot $0.5 !"},
		},
		"When the source is malformed and another offers the type in other zones, it should keep the machine's zone": {
			inventory.Origin{Source: c8.Source.Annotation(), Key: offering.Key{InstanceType: "c4", Zone: "z", CapacityType: karpv1.CapacityTypeSpot}},
			func(in *Input) { in.Gaps.Sources = []string{c8.Source.Annotation()} }, append(slices.Clone(now), "c4: z spot $0.03 !"),
		},
		"When the source has gone, it should keep the type": {madeFrom(c8, "a"), func(*Input) {}, append(slices.Clone(now), "c8: a spot $0.5 !")},
		"When the source makes another type now, it should not keep the former": {
			inventory.Origin{Source: c4.Source.Annotation(), Key: madeFrom(c8, "a").Key}, func(*Input) {}, now,
		},
		"When a machine reports nothing about its source, it should keep the type": {
			inventory.Origin{Key: madeFrom(c8, "a").Key}, func(*Input) {}, append(slices.Clone(now), "c8: a spot $0 !"),
		},
		"When a machine doesn't say what it was made as, it should keep nothing": {inventory.Origin{Source: "x"}, func(in *Input) { in.Gaps.All = true }, now},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(c4)
			in.Inventory = machinesOf(tc.machine)
			tc.change(&in)
			snapshot := snapshotOf(in)
			NewWithT(t).Expect(offered(snapshot.InstanceTypes)).To(BeComparableTo(tc.want))
			if !slices.IsSortedFunc(snapshot.InstanceTypes, func(a, b *karpcloudprovider.InstanceType) int { return byName(a, b.Name) }) {
				t.Error("the types have no order any more")
			}
			// What was kept isn't offered: nothing is launched as that, and it isn't found.
			if _, ok := snapshot.Resolve("c8", "a", karpv1.CapacityTypeSpot); ok || snapshot.Offers("c8", karpv1.CapacityTypeSpot) {
				t.Error("it can be resolved")
			}
			NewWithT(t).Expect(snapshot.Empty()).To(Equal(in.Templates == nil), "what is kept counts as something that can be made")
		})
	}

	t.Run("When nodes report a zone that nothing declares, it should say what to declare, and nothing once that is", func(t *testing.T) {
		g, in := NewWithT(t), input(c4)
		in.Inventory = machinesOf(inNodeZone(madeFrom(c4, DefaultZone), "eu-1a"))
		g.Expect(snapshotOf(in).Problems).To(BeEmpty())
		in.Cluster.FailureDomains = nil
		g.Expect(snapshotOf(in).Problems).To(ConsistOf(MatchError(And(ContainSubstring("c4 report zone eu-1a"), ContainSubstring(`a zone "default"`)))))
	})

	t.Run("When a type is known from its machines only, it should suit no pod, and be computed with all the same", func(t *testing.T) {
		in := input(c4)
		in.Gaps.All, in.Inventory = true, machinesOf(madeFrom(c8, "a"))
		it := snapshotOf(in).InstanceTypes[1]
		allocatable := it.Allocatable()
		if cpu := allocatable.Cpu(); !cpu.IsZero() {
			t.Errorf("it has %s cores", cpu)
		}
		if it.Requirements.Intersects(karpscheduling.NewLabelRequirements(map[string]string{corev1.LabelArchStable: "amd64"})) == nil {
			t.Error("it meets a requirement")
		}
		if price, ok := it.OfferingPrice("a", karpv1.CapacityTypeSpot); !ok || price != 0.5 {
			t.Errorf("Karpenter finds price %g, %t of its nodes", price, ok)
		}
	})
}

func TestToleratingInUse(t *testing.T) {
	tainted := newTemplate("c4", 4, 0.1, func(s *template.Template) {
		s.SpotPrice = ptr.To(0.03)
		s.Taints = []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}}
	})
	other := newTemplate("c8", 8, 0.2, nil)
	closed := []string{"c4: a on-demand $0.1 !", "c4: a spot $0.03 !", "c4: b on-demand $0.1 !", "c4: b spot $0.03 !"}
	rest := []string{"c8: a on-demand $0.2", "c8: b on-demand $0.2"}
	in := input(tainted, other)
	t.Run("When a template gets a taint and machines of it run, it should stay known and not be had", func(t *testing.T) {
		in.Inventory = machinesOf(madeFrom(tainted, "a"))
		NewWithT(t).Expect(offered(snapshotOf(in).Tolerating())).To(BeComparableTo(append(slices.Clone(closed), rest...)))
	})
	t.Run("When zones have begun too, it should keep the machine's zone", func(t *testing.T) {
		in.Inventory = machinesOf(madeFrom(tainted, DefaultZone))
		NewWithT(t).Expect(offered(snapshotOf(in).Tolerating())).To(BeComparableTo(append(append(slices.Clone(closed), "c4: default spot $0.03 !"), rest...)))
	})
	t.Run("When no machine of it runs, it should not be offered to those that don't tolerate it", func(t *testing.T) {
		running := madeFrom(other, "a")
		running.CapacityType = karpv1.CapacityTypeOnDemand
		in.Inventory = machinesOf(running)
		NewWithT(t).Expect(offered(snapshotOf(in).Tolerating())).To(BeComparableTo(rest))
	})
}

func TestUncounted(t *testing.T) {
	machines := inventory.New(inventory.Config{Counted: func() bool { return false }, Clock: clock.RealClock{}})
	store := newProvider(Config{Inventory: machines})
	setPartial(store, nodeClass(1), []template.Template{newTemplate("c4", 4, 0.1, nil)}, template.Cluster{}, template.Gaps{All: true})
	t.Run("When the machines haven't been counted yet, it should report nothing, because a type that lacks is one to be replaced", func(t *testing.T) {
		if _, err := store.InstanceTypes("default"); !errors.Is(err, ErrUnresolved) {
			t.Errorf("error: %v", err)
		}
	})
}
