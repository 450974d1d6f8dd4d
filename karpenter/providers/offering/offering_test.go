// SPDX-License-Identifier: Apache-2.0

package offering

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	clocktesting "k8s.io/utils/clock/testing"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"
)

var key = Key{InstanceType: "c4-large", Zone: "a", CapacityType: "spot"}

func TestNext(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	u := NewUnavailable(clk)
	changes := 0
	u.OnChange(func() { changes++ })
	other := Key{InstanceType: "c4-large", Zone: "b", CapacityType: "spot"}
	t.Run("When everything is available, it should expect nothing", func(t *testing.T) {
		if _, ok := u.Next(); ok || changes != 0 {
			t.Errorf("next %t, %d changes", ok, changes)
		}
	})
	until := u.Mark(key, "stockout")
	clk.Step(time.Second)
	t.Run("When offerings fail, it should tell each once, and when the first one's time is over", func(t *testing.T) {
		u.Mark(other, "stockout")
		u.Mark(other, "stockout")
		if next, ok := u.Next(); !ok || !next.Equal(until) || changes != 2 {
			t.Errorf("next %s, %t, %d changes; want %s, 2 changes", next, ok, changes, until)
		}
	})
	t.Run("When a time is over, it should tell at the next look", func(t *testing.T) {
		clk.SetTime(until)
		u.Sequence()
		if next, ok := u.Next(); !ok || !next.Equal(until.Add(time.Second)) || changes != 3 {
			t.Errorf("next %s, %t, %d changes", next, ok, changes)
		}
	})
}

func TestUnavailable(t *testing.T) {
	t.Run("When an offering fails again and again, it should stay unavailable for twice as long each time, up to an hour", func(t *testing.T) {
		clk := clocktesting.NewFakeClock(time.Now())
		u := NewUnavailable(clk)
		for i, want := range []int{3, 6, 12, 24, 48, 60, 60} {
			until := u.Mark(key, "stockout")
			if got := until.Sub(clk.Now()).Minutes(); got != float64(want) {
				t.Fatalf("failure %d: unavailable for %v minutes, want %d", i+1, got, want)
			}
			clk.SetTime(until.Add(-time.Second))
			if !u.Has(key) {
				t.Fatalf("failure %d: available before its time", i+1)
			}
			clk.Step(time.Second)
			if u.Has(key) {
				t.Fatalf("failure %d: unavailable after its time", i+1)
			}
		}
	})
	t.Run("When an offering worked for long enough, it should start again", func(t *testing.T) {
		clk := clocktesting.NewFakeClock(time.Now())
		u := NewUnavailable(clk)
		for range 3 {
			clk.SetTime(u.Mark(key, "stockout"))
		}
		clk.Step(MaxTTL + time.Second)
		if got := u.Mark(key, "stockout").Sub(clk.Now()); got != BaseTTL {
			t.Errorf("unavailable for %s, want %s", got, BaseTTL)
		}
	})
	t.Run("When several machines fail at once, it should count one failure", func(t *testing.T) {
		u := NewUnavailable(clocktesting.NewFakeClock(time.Now()))
		first := u.Mark(key, "stockout")
		sequence := u.Sequence()
		if second := u.Mark(key, "stockout"); !second.Equal(first) || u.Sequence() != sequence {
			t.Error("the second failure changed something")
		}
		if diff := cmp.Diff([]Entry{{Key: key, Reason: "stockout", Until: first, Failures: 1}}, u.Entries()); diff != "" {
			t.Errorf("entries (-want +got):\n%s", diff)
		}
	})
	t.Run("When an offering becomes unavailable, and when it becomes available, it should change the sequence", func(t *testing.T) {
		clk := clocktesting.NewFakeClock(time.Now())
		u := NewUnavailable(clk)
		before := u.Sequence()
		until := u.Mark(key, "stockout")
		marked := u.Sequence()
		clk.SetTime(until.Add(-time.Second))
		still := u.Sequence()
		clk.SetTime(until)
		over := u.Sequence()
		if before == marked || marked != still || still == over || over != u.Sequence() {
			t.Errorf("sequences: %d %d %d %d %d", before, marked, still, over, u.Sequence())
		}
		if len(u.Entries()) != 0 {
			t.Errorf("entries: %v", u.Entries())
		}
	})
	t.Run("When machines fail for other reasons, it should wait for the third in a row", func(t *testing.T) {
		clk := clocktesting.NewFakeClock(time.Now())
		u := NewUnavailable(clk)
		for range FailureThreshold - 1 {
			if until := u.CountFailure(key, "broken"); !until.IsZero() || u.Has(key) {
				t.Fatalf("unavailable too early, until %s", until)
			}
			clk.Step(time.Hour)
		}
		until := u.CountFailure(key, "broken")
		if got := until.Sub(clk.Now()); got != BaseTTL || !u.Has(key) {
			t.Fatalf("unavailable for %s, want %s", got, BaseTTL)
		}
		clk.SetTime(until)
		if got := u.CountFailure(key, "broken").Sub(clk.Now()); got != 2*BaseTTL {
			t.Errorf("after one more, unavailable for %s, want %s", got, 2*BaseTTL)
		}
	})
	t.Run("When a machine that was created afterwards works, it should forget the failures", func(t *testing.T) {
		clk := clocktesting.NewFakeClock(time.Now())
		u := NewUnavailable(clk)
		asked := clk.Now()
		for range FailureThreshold - 1 {
			clk.Step(time.Minute)
			u.CountFailure(key, "broken")
		}
		u.Works(key, asked)
		clk.SetTime(u.CountFailure(key, "broken"))
		if len(u.Entries()) != 0 || u.past[key].Failures != 1 {
			t.Fatalf("an earlier machine proves nothing: %v", u.past)
		}
		clk.Step(time.Minute)
		u.Works(key, clk.Now())
		if until := u.CountFailure(key, "broken"); !until.IsZero() {
			t.Errorf("unavailable after one failure, until %s", until)
		}
		if got := u.Mark(key, "stockout").Sub(clk.Now()); got != BaseTTL {
			t.Errorf("unavailable for %s, want %s", got, BaseTTL)
		}
	})
	t.Run("When failures are far apart, it should forget them", func(t *testing.T) {
		clk := clocktesting.NewFakeClock(time.Now())
		u := NewUnavailable(clk)
		for range FailureThreshold + 1 {
			if until := u.CountFailure(key, "broken"); !until.IsZero() {
				t.Fatalf("unavailable until %s", until)
			}
			clk.Step(FailureMemory + time.Second)
		}
	})
	t.Run("When one offering fails, it should say nothing about its neighbours", func(t *testing.T) {
		u := NewUnavailable(clocktesting.NewFakeClock(time.Now()))
		u.Mark(key, "stockout")
		for _, other := range []Key{
			{InstanceType: "c4-large", Zone: "b", CapacityType: "spot"}, {InstanceType: "c4-large", Zone: "a", CapacityType: "on-demand"},
			{InstanceType: "c2-small", Zone: "a", CapacityType: "spot"}, {InstanceType: "c4-large", Zone: "a", CapacityType: "spot", Reservation: "r-1"},
		} {
			if u.Has(other) {
				t.Errorf("%v is unavailable", other)
			}
		}
	})
}

type offer struct {
	zone, capacityType string
	price              float64
	unavailable        bool
}

func instanceType(name, arch, cpu string, offers ...offer) *cloudprovider.InstanceType {
	it := &cloudprovider.InstanceType{
		Name: name,
		Requirements: scheduling.NewRequirements(
			scheduling.NewRequirement(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, name),
			scheduling.NewRequirement(corev1.LabelArchStable, corev1.NodeSelectorOpIn, arch),
		),
		Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
		Overhead: &cloudprovider.InstanceTypeOverhead{KubeReserved: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}},
	}
	for _, o := range offers {
		it.Offerings = append(it.Offerings, &cloudprovider.Offering{
			Requirements: scheduling.NewRequirements(
				scheduling.NewRequirement(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, o.zone),
				scheduling.NewRequirement(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, o.capacityType),
			),
			Price: o.price, Available: !o.unavailable,
		})
	}
	return it
}

func TestCheapest(t *testing.T) {
	types := []*cloudprovider.InstanceType{
		instanceType("c2-small", "amd64", "2", offer{"a", "on-demand", 0.021, false}, offer{"b", "on-demand", 0.021, false}),
		instanceType("c4-large", "amd64", "4", offer{"a", "on-demand", 0.096, false}, offer{"a", "spot", 0.031, false}, offer{"b", "spot", 0.029, true}),
		instanceType("c4-arm", "arm64", "4", offer{"a", "on-demand", 0.080, false}),
	}
	in := func(key string, values ...string) *scheduling.Requirement {
		return scheduling.NewRequirement(key, corev1.NodeSelectorOpIn, values...)
	}
	for _, tc := range []struct {
		name         string
		requirements []*scheduling.Requirement
		cpu          string
		want         []string
	}{
		{"When everything fits, it should order by price and leave out what is unavailable", nil, "1",
			[]string{"c2-small/a/on-demand", "c2-small/b/on-demand", "c4-large/a/spot", "c4-arm/a/on-demand", "c4-large/a/on-demand"}},
		{"When the requests are as big as the capacity, it should remember the overhead", nil, "2",
			[]string{"c4-large/a/spot", "c4-arm/a/on-demand", "c4-large/a/on-demand"}},
		{"When an architecture is required, it should take no other", []*scheduling.Requirement{in(corev1.LabelArchStable, "arm64")}, "1",
			[]string{"c4-arm/a/on-demand"}},
		{"When a zone is required, it should take no other", []*scheduling.Requirement{in(corev1.LabelTopologyZone, "b")}, "1",
			[]string{"c2-small/b/on-demand"}},
		{"When a capacity type is required, it should take no other", []*scheduling.Requirement{in(karpv1.CapacityTypeLabelKey, "on-demand"), in(corev1.LabelInstanceTypeStable, "c4-large")}, "1",
			[]string{"c4-large/a/on-demand"}},
		{"When only something unavailable would do, it should find nothing", []*scheduling.Requirement{in(karpv1.CapacityTypeLabelKey, "spot"), in(corev1.LabelTopologyZone, "b")}, "1",
			[]string{}},
		{"When nothing is big enough, it should find nothing", nil, "64", []string{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := []string{}
			for c := range OrderOf(types).Cheapest(types, scheduling.NewRequirements(tc.requirements...), corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(tc.cpu)}, "seed") {
				k := c.Key()
				got = append(got, k.InstanceType+"/"+k.Zone+"/"+k.CapacityType)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("candidates (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("When many claims ask for the same, it should spread them over the zones, and answer each the same again", func(t *testing.T) {
		zones := map[string]int{}
		first := func(seed string) string {
			return slices.Collect(OrderOf(types).Cheapest(types, scheduling.NewRequirements(), nil, seed))[0].Key().Zone
		}
		for i := range 100 {
			seed := fmt.Sprintf("claim-%d", i)
			zone := first(seed)
			if again := first(seed); again != zone {
				t.Fatalf("%s: zone %s, then %s", seed, zone, again)
			}
			zones[zone]++
		}
		if zones["a"] < 25 || zones["b"] < 25 {
			t.Errorf("zones: %v", zones)
		}
	})
}
