// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/providers/change"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/pricing"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// fleet returns a provider with that many templates in three zones and two capacity types, and five machines of each.
func fleet(templates int) (*Provider, *offering.Unavailable, *inventory.Inventory, *clocktesting.FakeClock) {
	clk := clocktesting.NewFakeClock(time.Now())
	unavailable, machines := offering.NewUnavailable(clk), newInventory()
	store := newProvider(Config{Unavailable: unavailable, Inventory: machines})
	var all []template.Template
	for i := range templates {
		all = append(all, environment.FleetTemplate(i))
		all[i].MaxSize = ptr.To(6)
		for n := range 5 {
			machines.ObserveMachine(types.UID(fmt.Sprint(i, "-", n)), inventory.Machine{Origin: madeFrom(all[i], "a")})
		}
	}
	set(store, nodeClass(1), all, manyZones())
	return store, unavailable, machines, clk
}

// BenchmarkCheapest chooses an offering for a NodeClaim that allows six hundred instance types, as many as Karpenter
// names at most: as fast among 9,000 offerings as among 900.
func BenchmarkCheapest(b *testing.B) {
	for _, templates := range []int{150, 1_500} {
		store, unavailable, _, clk := fleet(templates)
		var names []string
		for i := range min(templates, 600) {
			names = append(names, fmt.Sprintf("t-%d", i))
		}
		requirements := karpscheduling.NewRequirements(
			karpscheduling.NewRequirement(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, names...),
			karpscheduling.NewRequirement(corev1.LabelArchStable, corev1.NodeSelectorOpIn, "amd64"),
			karpscheduling.NewRequirement(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, "a", "b"),
			karpscheduling.NewRequirement(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, karpv1.CapacityTypeOnDemand, karpv1.CapacityTypeSpot),
		)
		requests := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")}
		choose := func(b *testing.B) {
			snapshot, err := store.Cached("default")
			if err != nil {
				b.Fatal(err)
			}
			for range snapshot.Cheapest(snapshot.Tolerating(), requirements, requests, "uid") {
				return
			}
			b.Fatal("nothing was found")
		}
		b.Run(fmt.Sprintf("nothing changed/offerings=%d", templates*6), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				choose(b)
			}
		})
		b.Run(fmt.Sprintf("an offering failed/offerings=%d", templates*6), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				unavailable.Mark(offering.Key{InstanceType: fmt.Sprintf("t-%d", i%templates), Zone: "a", CapacityType: karpv1.CapacityTypeSpot}, "NoHosts")
				choose(b)
				clk.Step(3 * offering.MaxTTL)
			}
		})
	}
}

// BenchmarkAvailability reads the instance types after one of them has changed: as fast among 1,000 as among 100.
func BenchmarkAvailability(b *testing.B) {
	for _, templates := range []int{100, 1_000} {
		store, unavailable, machines, clk := fleet(templates)
		read := func(b *testing.B) {
			if its, err := store.InstanceTypes("default"); err != nil || len(its) != templates {
				b.Fatal(len(its), err)
			}
		}
		b.Run(fmt.Sprintf("offering failed/templates=%d", templates), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				unavailable.Mark(offering.Key{InstanceType: fmt.Sprintf("t-%d", i%templates), Zone: "a", CapacityType: karpv1.CapacityTypeSpot}, "NoHosts")
				read(b)
				clk.Step(3 * offering.MaxTTL)
				read(b)
			}
		})
		b.Run(fmt.Sprintf("source full/templates=%d", templates), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				machines.ObserveMachine("sixth", inventory.Machine{Origin: madeFrom(environment.FleetTemplate(i%templates), "a")})
				read(b)
				machines.ForgetMachine("sixth")
				read(b)
			}
		})
	}
}

// prices are those of a file, of which one changes at a time.
type prices struct {
	changes  change.Log[string]
	onDemand map[string]float64
}

// Price implements pricing.Source.
func (p *prices) Price(tmpl *template.Template, _, capacityType string) (float64, bool) {
	price, priced := p.onDemand[tmpl.InstanceType]
	return price, priced && capacityType == karpv1.CapacityTypeOnDemand
}

// Sequence implements pricing.Source.
func (p *prices) Sequence() uint64 { return p.changes.Sequence() }

// Since implements pricing.Source.
func (p *prices) Since(sequence uint64) (instanceTypes []string, known bool) {
	return p.changes.Since(sequence)
}

func (p *prices) change(instanceType string, price float64) {
	p.onDemand[instanceType] = price
	p.changes.Add(instanceType)
}

// BenchmarkCatalog reads the instance types of a catalog: while nothing changes, after one change, and the first time.
func BenchmarkCatalog(b *testing.B) {
	for _, size := range []int{100, 1_000} {
		list := &prices{onDemand: map[string]float64{}}
		m := newMarket(b, size, pricing.Sources{list, pricing.Catalogs{}, pricing.Annotations{}, pricing.Estimate{}}).used()
		b.Run(fmt.Sprintf("nothing changed/types=%d", size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if its, err := m.InstanceTypes(m.class.Name); err != nil || len(its) != size {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("an offering failed/types=%d", size), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				m.unavailable.Mark(spotIn(fmt.Sprintf("t-%d", i%size), "a"), "NoHosts")
				m.cached()
				m.clock.Step(3 * time.Hour)
				m.cached()
			}
		})
		b.Run(fmt.Sprintf("a price changed/types=%d", size), func(b *testing.B) {
			b.ReportAllocs()
			resolutions := m.resolutions()
			for i := 0; b.Loop(); i++ {
				list.change(fmt.Sprintf("t-%d", i%size), float64(i%1_000)+0.5)
				m.cached()
			}
			b.ReportMetric(float64(m.resolutions()-resolutions)/float64(b.N), "resolved/op")
		})
		b.Run(fmt.Sprintf("a catalog's price changed, the whole catalog read again/types=%d", size), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				m.objects.ChangeCatalog(i%size, func(entry map[string]any) {
					entry["offerings"].([]any)[0].(map[string]any)["price"] = fmt.Sprintf("%d.5", i%100)
				})
				b.StartTimer()
				m.refresh()
			}
		})
		b.Run(fmt.Sprintf("read for the first time/types=%d", size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				newMarket(b, size, nil).used()
			}
			b.ReportMetric(float64(retained(func() any { return newMarket(b, size, nil).used() }))/(1<<20), "MiB")
		})
	}
}
