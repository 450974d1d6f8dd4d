// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/pricing"
)

// market is a node class over a catalog, read as Karpenter reads it.
type market struct {
	tb      testing.TB
	objects environment.Objects
	*Provider
	machines    *inventory.Inventory
	unavailable *offering.Unavailable
	clock       *clocktesting.FakeClock
	class       *v1alpha1.ClusterAPINodeClass
}

// costsNoAllocation reads the instance types again and again.
func (m *market) costsNoAllocation(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() {
		if its, err := m.InstanceTypes(m.class.Name); err != nil || len(its) == 0 {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// newMarket returns a catalog of that many instance types, each in three zones and three capacity types.
func newMarket(tb testing.TB, types int, prices pricing.Source) *market {
	tb.Helper()
	clk := clocktesting.NewFakeClock(time.Now())
	m := &market{
		tb: tb, objects: environment.FleetCatalog(types), machines: newInventory(), unavailable: offering.NewUnavailable(clk), clock: clk,
		class: environment.CatalogNodeClass(),
	}
	if prices == nil {
		prices = pricing.New(pricing.NewFile(""))
	}
	m.Provider = New(Config{
		Templates: m.objects.Resolver(),
		Pricing:   prices, Unavailable: m.unavailable, Inventory: m.machines, Capacity: capacityprovider.Unlimited{},
	})
	return m
}

func (m *market) refresh() *Snapshot {
	m.tb.Helper()
	listing, err := m.Refresh(context.Background(), m.class)
	if err != nil {
		m.tb.Fatal(err)
	}
	return listing.Snapshot
}

func (m *market) cached() *Snapshot {
	m.tb.Helper()
	snapshot, err := m.Cached(m.class.Name)
	if err != nil {
		m.tb.Fatal(err)
	}
	return snapshot
}

// resolutions is the number of instance types that were resolved so far.
func (m *market) resolutions() int {
	value, _ := m.entries.Load(m.class.Name)
	return value.(*entry).builder.resolutions
}

// renewed returns the names of the instance types that two snapshots don't share.
func renewed(before, after *Snapshot) (names []string) {
	for _, it := range after.InstanceTypes {
		if at, ok := before.at(it.Name); !ok || before.InstanceTypes[at] != it {
			names = append(names, it.Name)
		}
	}
	return names
}

func offeringAt(s *Snapshot, key offering.Key) *karpcloudprovider.Offering {
	choice, ok := s.ResolveKey(key)
	if !ok {
		return nil
	}
	return choice.Offering
}

func spotIn(instanceType, zone string) offering.Key {
	return offering.Key{InstanceType: instanceType, Zone: zone, CapacityType: karpv1.CapacityTypeSpot}
}

func reservedIn(instanceType, zone, reservation string) offering.Key {
	return offering.Key{InstanceType: instanceType, Zone: zone, CapacityType: karpv1.CapacityTypeReserved, Reservation: reservation}
}

func TestCatalogOfThousands(t *testing.T) {
	const types = 1_000
	file := filepath.Join(t.TempDir(), "prices.yaml")
	write := func(content string) {
		t.Helper()
		NewWithT(t).Expect(os.WriteFile(file, []byte(content), 0o600)).To(Succeed())
	}
	write("[]")
	prices := pricing.NewFile(file)
	m := newMarket(t, types, pricing.New(prices))
	first := m.refresh()
	if len(first.InstanceTypes) != types || len(first.InstanceTypes[0].Offerings) != 9 || len(first.Problems) > 0 {
		t.Fatalf("%d types, %d offerings, problems %v", len(first.InstanceTypes), len(first.InstanceTypes[0].Offerings), first.Problems)
	}
	order := slices.Collect(first.Cheapest(first.InstanceTypes, nil, nil, "seed"))
	NewWithT(t).Expect(order).To(HaveLen(types * 9))
	resolutions := m.resolutions()
	// one expects that a change resolved one instance type, and that everything else is shared.
	one := func(t *testing.T, before, after *Snapshot, name string) {
		t.Helper()
		NewWithT(t).Expect(renewed(before, after)).To(Equal([]string{name}))
		if now := m.resolutions(); now != resolutions+1 {
			t.Errorf("%d instance types were resolved", now-resolutions)
		}
		resolutions = m.resolutions()
	}
	t.Run("When an offering fails, it should resolve one type", func(t *testing.T) {
		before := m.cached()
		m.unavailable.Mark(spotIn("t-7", "b"), "stockout")
		after := m.cached()
		one(t, before, after, "t-7")
		if offeringAt(after, spotIn("t-7", "b")).Available || !offeringAt(after, spotIn("t-7", "a")).Available {
			t.Error("the wrong offering is unavailable")
		}
		NewWithT(t).Expect(after.order.Load()).To(BeIdenticalTo(before.order.Load()), "the order should be shared")
	})
	t.Run("When a price of the catalog changes, it should resolve one type", func(t *testing.T) {
		before := m.cached()
		m.objects.ChangeCatalog(9, func(entry map[string]any) {
			entry["offerings"].([]any)[0].(map[string]any)["price"] = "0.0001"
		})
		after := m.refresh()
		one(t, before, after, "t-9")
		for candidate := range after.Cheapest(after.InstanceTypes, nil, nil, "seed") {
			if candidate.InstanceType.Name != "t-9" || candidate.Offering.Price != 0.0001 {
				t.Errorf("the cheapest is %s at %v", candidate.InstanceType.Name, candidate.Offering.Price)
			}
			break
		}
	})
	t.Run("When a price in the platform's file changes, it should resolve one type", func(t *testing.T) {
		before := m.cached()
		write(`[{instanceType: t-3, price: 9}]`)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		noticed := make(chan struct{}, 1)
		prices.OnChange(func() {
			select {
			case noticed <- struct{}{}:
			default:
			}
		})
		go func() { _ = prices.Start(ctx) }()
		select {
		case <-noticed:
		case <-time.After(time.Minute):
			t.Fatal("the file wasn't read again")
		}
		after := m.cached()
		one(t, before, after, "t-3")
		if price := offeringAt(after, offering.Key{InstanceType: "t-3", Zone: "a", CapacityType: karpv1.CapacityTypeOnDemand}).Price; price != 9 {
			t.Errorf("the price is %v", price)
		}
	})
	t.Run("When a machine uses a reservation, it should resolve one type", func(t *testing.T) {
		before := m.cached()
		key := reservedIn("t-5", "a", "r-5-a")
		m.machines.ObserveMachine("m-1", inventory.Machine{Origin: inventory.Origin{Source: "other", Key: key}})
		after := m.cached()
		one(t, before, after, "t-5")
		if o := offeringAt(after, key); o.ReservationCapacity != 4 || !o.Available {
			t.Errorf("%d left, available %t", o.ReservationCapacity, o.Available)
		}
	})
	t.Run("When an entry is deleted, it should drop one type and keep the others", func(t *testing.T) {
		before := m.cached()
		changed := m.objects.Catalog().DeepCopy()
		changed.SetGeneration(changed.GetGeneration() + 1)
		spec := changed.Object["spec"].(map[string]any)
		spec["instanceTypes"] = slices.Delete(spec["instanceTypes"].([]any), 20, 21)
		m.objects[len(m.objects)-1] = changed
		after := m.refresh()
		if got := renewed(before, after); len(got) > 0 || len(after.InstanceTypes) != types-1 {
			t.Errorf("%d types, %d new", len(after.InstanceTypes), len(got))
		}
	})
	t.Run("When it is handed out, it should cost no allocation", m.costsNoAllocation)
}

// used reads everything that Karpenter computes of a catalog and keeps.
func (m *market) used() *market {
	m.tb.Helper()
	snapshot := m.refresh()
	for range snapshot.Cheapest(snapshot.InstanceTypes, nil, nil, "seed") {
		break
	}
	for _, it := range snapshot.InstanceTypes {
		it.Allocatable()
	}
	return m
}

// retained is the memory in bytes that what a function returns takes.
func retained(build func() any) int64 {
	measure := func() int64 {
		goruntime.GC()
		goruntime.GC()
		stats := goruntime.MemStats{}
		goruntime.ReadMemStats(&stats)
		return int64(stats.HeapAlloc)
	}
	before := measure()
	built := build()
	after := measure()
	goruntime.KeepAlive(built)
	return after - before
}

func TestCatalogMemory(t *testing.T) {
	t.Run("When a thousand types are offered in three zones and three capacity types, it should take less than 60 MiB, with all that Karpenter caches of them", func(t *testing.T) {
		const most = 60 << 20
		if used := retained(func() any { return newMarket(t, 1_000, nil).used() }); used > most {
			t.Errorf("%d MiB", used>>20)
		} else {
			t.Logf("%.1f MiB", float64(used)/(1<<20))
		}
	})
}

func TestReservations(t *testing.T) {
	m := newMarket(t, 2, nil)
	m.refresh()
	key := reservedIn("t-1", "b", "r-1-b")
	t.Run("When nothing uses it, it should offer the whole reservation", func(t *testing.T) {
		o := offeringAt(m.cached(), key)
		if o == nil || !o.Available || o.ReservationCapacity != 5 || o.ReservationID() != "r-1-b" || o.CapacityType() != karpv1.CapacityTypeReserved {
			t.Fatalf("got %+v", o)
		}
		it := m.cached().InstanceTypes[1]
		if got := it.Requirements.Get(v1alpha1.ReservationIDLabel).Values(); len(got) != 3 {
			t.Errorf("the type has reservations %v", got)
		}
		for _, o := range it.Offerings {
			if requirement, ok := o.Requirements[v1alpha1.ReservationIDLabel]; o.CapacityType() != karpv1.CapacityTypeReserved && (!ok || requirement.Has("r-1-b")) {
				t.Errorf("offering %s %s could be taken for a reserved one", o.Zone(), o.CapacityType())
			}
		}
	})
	t.Run("When launches race for it, it should give out as many as there are", func(t *testing.T) {
		for i := range 5 {
			if err := m.machines.AcquireReserved(types.UID(fmt.Sprint(i)), "r-1-b", 5); err != nil {
				t.Fatalf("launch %d: %v", i, err)
			}
		}
		if err := m.machines.AcquireReserved("5", "r-1-b", 5); !errors.Is(err, inventory.ErrFull) {
			t.Fatalf("the sixth: %v", err)
		}
		if o := offeringAt(m.cached(), key); o.Launchable() || o.ReservationCapacity != 0 {
			t.Errorf("got %+v", o)
		}
	})
	t.Run("When a launch fails for good, it should be available again", func(t *testing.T) {
		m.machines.Release("3")
		if o := offeringAt(m.cached(), key); !o.Available || o.ReservationCapacity != 1 {
			t.Errorf("got %+v", o)
		}
	})
	t.Run("When the entry's reservation is deleted while a machine uses it, it should keep the offering closed", func(t *testing.T) {
		source := m.templatesOf(t)["t-1"]
		m.machines.ObserveMachine("0", inventory.Machine{Origin: inventory.Origin{Source: source, Key: key, Price: 0.01}})
		m.objects.ChangeCatalog(1, func(entry map[string]any) { entry["offerings"] = entry["offerings"].([]any)[:2] })
		snapshot := m.refresh()
		if _, offered := snapshot.ResolveKey(key); offered {
			t.Error("it is still offered")
		}
		NewWithT(t).Expect(snapshot.Gone(source, key)).To(BeFalse(), "a deleted offering should replace no node")
		if !slices.ContainsFunc(snapshot.InstanceTypes[1].Offerings, func(o *karpcloudprovider.Offering) bool {
			return offering.KeyOf("t-1", o) == key && !o.Available
		}) {
			t.Error("Karpenter would replace the node: it has no such offering")
		}
	})
}

// templatesOf are the sources of the instance types.
func (m *market) templatesOf(t *testing.T) map[string]string {
	t.Helper()
	sources := map[string]string{}
	for tmpl := range m.cached().Templates() {
		sources[tmpl.InstanceType] = tmpl.Source.Annotation()
	}
	return sources
}

func TestCatalogObstacles(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(entry map[string]any)
		want   string
	}{
		"When no offering has a price, it should say so": {func(entry map[string]any) {
			entry["offerings"] = []any{map[string]any{"zones": []any{"a"}}}
		}, v1alpha1.TemplateNoPrice},
		"When it has no offering, it should say so": {func(entry map[string]any) { delete(entry, "offerings") }, v1alpha1.TemplateNoPrice},
		"When its zones aren't the Cluster's, it should say so": {func(entry map[string]any) {
			entry["offerings"] = []any{map[string]any{"zones": []any{"elsewhere"}, "price": "1"}}
		}, v1alpha1.TemplateNoZone},
		"When one zone is the Cluster's, it should launch there": {func(entry map[string]any) {
			entry["offerings"] = []any{map[string]any{"zones": []any{"elsewhere", "a"}, "price": "1"}}
		}, ""},
		"When it names no zone, it should be in each of the Cluster's": {func(entry map[string]any) {
			entry["offerings"] = []any{map[string]any{"price": "1"}}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMarket(t, 1, nil)
			m.objects.ChangeCatalog(0, tc.change)
			snapshot := m.refresh()
			NewWithT(t).Expect(snapshot.Unavailable(m.templatesOf(t)["t-0"])).To(Equal(tc.want))
			available := 0
			for _, o := range snapshot.InstanceTypes[0].Offerings {
				if o.Available {
					available++
				}
			}
			if (available == 0) != (tc.want != "") {
				t.Errorf("%d offerings are available", available)
			}
		})
	}
}
