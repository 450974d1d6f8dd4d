// SPDX-License-Identifier: Apache-2.0

package offering

import (
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	clocktesting "k8s.io/utils/clock/testing"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/autonode-io/autonode/capacity"
)

var key = Key{InstanceType: "c4-large", Zone: "a", CapacityType: "spot"}

func newUnavailable() (*Unavailable, *clocktesting.FakeClock) {
	clk := clocktesting.NewFakeClock(time.Now())
	return NewUnavailable(clk), clk
}

func TestNext(t *testing.T) {
	u, clk := newUnavailable()
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
	t.Run("When offerings fail, it should report each once, and when the first one's time is over", func(t *testing.T) {
		u.Mark(other, "stockout")
		u.Mark(other, "stockout")
		if next, ok := u.Next(); !ok || !next.Equal(until) || changes != 2 {
			t.Errorf("next %s, %t, %d changes; want %s, 2 changes", next, ok, changes, until)
		}
	})
	t.Run("When a time is over, it should report that when read next", func(t *testing.T) {
		clk.SetTime(until)
		u.Sequence()
		if next, ok := u.Next(); !ok || !next.Equal(until.Add(time.Second)) || changes != 3 {
			t.Errorf("next %s, %t, %d changes", next, ok, changes)
		}
	})
}

func TestUnavailable(t *testing.T) {
	t.Run("When an offering fails again and again, it should stay unavailable for twice as long each time, up to an hour", func(t *testing.T) {
		u, clk := newUnavailable()
		for i, want := range []int{3, 6, 12, 24, 48, 60, 60} {
			until := u.Mark(key, "stockout")
			NewWithT(t).Expect(until.Sub(clk.Now()).Minutes()).To(Equal(float64(want)), "failure %d", i+1)
			clk.SetTime(until.Add(-time.Second))
			NewWithT(t).Expect(u.Has(key)).To(BeTrue())
			clk.Step(time.Second)
			NewWithT(t).Expect(u.Has(key)).To(BeFalse(), "%v", key)
		}
	})
	t.Run("When an offering worked for long enough, it should start again", func(t *testing.T) {
		u, clk := newUnavailable()
		for range 3 {
			clk.SetTime(u.Mark(key, "stockout"))
		}
		clk.Step(MaxTTL + time.Second)
		NewWithT(t).Expect(u.Mark(key, "stockout").Sub(clk.Now())).To(Equal(BaseTTL))
	})
	t.Run("When several machines fail at once, it should count one failure", func(t *testing.T) {
		u, _ := newUnavailable()
		first := u.Mark(key, "stockout")
		sequence := u.Sequence()
		if second := u.Mark(key, "stockout"); !second.Equal(first) || u.Sequence() != sequence {
			t.Error("the second failure changed something")
		}
		NewWithT(t).Expect(u.Entries()).To(BeComparableTo([]Entry{{Key: key, Reason: "stockout", At: u.Now(), Until: first, Failures: 1}}))
	})
	t.Run("When an offering becomes unavailable, and when it becomes available, it should change the sequence", func(t *testing.T) {
		u, clk := newUnavailable()
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
		NewWithT(t).Expect(u.Entries()).To(BeEmpty())
	})
	t.Run("When machines fail for other reasons, it should wait for the third in a row", func(t *testing.T) {
		u, clk := newUnavailable()
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
		NewWithT(t).Expect(u.CountFailure(key, "broken").Sub(clk.Now())).To(Equal(2 * BaseTTL))
	})
	t.Run("When a machine that was created afterwards works, it should forget the failures", func(t *testing.T) {
		u, clk := newUnavailable()
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
		NewWithT(t).Expect(u.Mark(key, "stockout").Sub(clk.Now())).To(Equal(BaseTTL))
	})
	t.Run("When failures are far apart, it should forget them", func(t *testing.T) {
		u, clk := newUnavailable()
		for range FailureThreshold + 1 {
			if until := u.CountFailure(key, "broken"); !until.IsZero() {
				t.Fatalf("unavailable until %s", until)
			}
			clk.Step(FailureMemory + time.Second)
		}
	})
	t.Run("When one offering fails, it should say nothing about its neighbours", func(t *testing.T) {
		u, _ := newUnavailable()
		u.Mark(key, "stockout")
		for _, other := range []Key{
			{InstanceType: "c4-large", Zone: "b", CapacityType: "spot"}, {InstanceType: "c4-large", Zone: "a", CapacityType: "on-demand"},
			{InstanceType: "c2-small", Zone: "a", CapacityType: "spot"}, {InstanceType: "c4-large", Zone: "a", CapacityType: "spot", Reservation: "r-1"},
		} {
			NewWithT(t).Expect(u.Has(other)).To(BeFalse(), "%v", other)
		}
	})
}

func TestStreak(t *testing.T) {
	u, clk := newUnavailable()
	nth := func(i int) Key {
		return Key{InstanceType: fmt.Sprintf("m%d.large", i), Zone: "a", CapacityType: "on-demand"}
	}
	others := func(yield func(Key) bool) {
		for i := range 3 * StreakThreshold {
			if !yield(nth(i)) {
				return
			}
		}
	}
	fail := func(from, to int) {
		for i := from; i < to; i++ {
			clk.Step(time.Second)
			u.Mark(nth(i), "broken")
		}
	}
	expect := func(want int) {
		t.Helper()
		if got := u.Streak(others); len(got) != want {
			t.Errorf("%d in a row, want %d: %v", len(got), want, got)
		}
	}
	u.Mark(Key{InstanceType: "of another node class"}, "broken")
	t.Run("When too few have failed, it should be no streak", func(*testing.T) {
		fail(0, StreakThreshold-1)
		u.Hold(nth(3*StreakThreshold-1), "held", clk.Now().Add(time.Minute))
		expect(0)
	})
	t.Run("When five have failed, it should return them", func(*testing.T) {
		fail(StreakThreshold-1, StreakThreshold)
		expect(StreakThreshold)
	})
	t.Run("When a machine of another node class became a node, it should go on", func(*testing.T) {
		u.Works(Key{InstanceType: "of another node class"}, clk.Now())
		expect(StreakThreshold)
	})
	t.Run("When a machine of another offering became a node, it should count from there", func(*testing.T) {
		u.Works(nth(3*StreakThreshold-1), clk.Now())
		expect(0)
		fail(StreakThreshold, 2*StreakThreshold-1)
		expect(0)
		fail(2*StreakThreshold-1, 2*StreakThreshold)
		expect(StreakThreshold)
	})
	t.Run("When one has failed and would again, it should return it until another launch works", func(*testing.T) {
		u.Works(nth(3*StreakThreshold-1), clk.Now())
		clk.Step(time.Second)
		u.Mark(nth(2*StreakThreshold), MisconfiguredReason)
		expect(1)
		u.Works(nth(3*StreakThreshold-1), clk.Now())
		expect(0)
		fail(2*StreakThreshold, 3*StreakThreshold)
	})
	t.Run("When their back-off ends, it should end", func(*testing.T) {
		clk.Step(BaseTTL)
		expect(0)
	})
}

func TestExhausted(t *testing.T) {
	in := func(zone, instanceType string) Key {
		return Key{InstanceType: instanceType, Zone: zone, CapacityType: "on-demand"}
	}
	lacking := func(u *Unavailable, keys ...Key) (until time.Time) {
		for _, key := range keys {
			until = u.MarkExhausted(key, "stockout")
		}
		return until
	}
	family := Quota{QuotaName: capacity.QuotaName{Name: "on-demand m5"}}
	exceeding := func(u *Unavailable, keys ...Key) {
		for _, key := range keys {
			u.MarkExceeded(key, family, -1, "QuotaExceeded")
		}
	}
	four := []Key{in("a", "m5.large"), in("a", "c5.large"), in("a", "r5.large"), in("a", "t3.large")}
	t.Run("When four types of a zone lack capacity, it should close the zone until fewer do, and nothing else", func(t *testing.T) {
		u, clk := newUnavailable()
		other := in("a", "x1.large")
		first := lacking(u, four[0])
		clk.Step(time.Second)
		lacking(u, four[1:3]...)
		NewWithT(t).Expect(u.Has(other)).To(BeFalse(), "closed by three types")
		lacking(u, four[3])
		NewWithT(t).Expect(u.Has(other)).To(BeTrue(), "open in spite of four types")
		spot, reserved := in("a", "x1.large"), in("a", "x1.large")
		spot.CapacityType, reserved.CapacityType, reserved.Reservation = "spot", "reserved", "cr-1"
		for _, key := range []Key{in("b", "x1.large"), spot, reserved} {
			NewWithT(t).Expect(u.Has(key)).To(BeFalse(), "%v", key)
		}
		if clk.SetTime(first); u.Has(other) || !u.Has(four[1]) {
			t.Error("the zone should be open, and the other types closed")
		}
	})
	t.Run("When four types of a zone fail for something else, it should say nothing of the zone", func(t *testing.T) {
		u, _ := newUnavailable()
		for _, key := range four {
			u.Mark(key, "Misconfigured")
		}
		exceeding(u, in("a", "u1"), in("a", "u2"), in("a", "u3"), in("a", "u4"))
		NewWithT(t).Expect(u.Has(in("a", "x1.large"))).To(BeFalse(), "the zone is closed")
	})
	t.Run("When types lack capacity where machines have no zone, it should say nothing of all of them", func(t *testing.T) {
		u, _ := newUnavailable()
		for _, key := range four {
			key.Zone = DefaultZone
			lacking(u, key)
		}
		NewWithT(t).Expect(u.Has(in(DefaultZone, "x1.large"))).To(BeFalse(), "the zone is closed")
	})
	t.Run("When reservations of a zone are used up, it should say nothing of the zone", func(t *testing.T) {
		u, _ := newUnavailable()
		for _, key := range four {
			key.CapacityType, key.Reservation = "reserved", "cr-1"
			lacking(u, key)
			exceeding(u, key)
		}
		other := in("a", "x1.large")
		other.CapacityType = "reserved"
		if u.Has(other) || u.Has(in("a", "m5.large"), family) {
			t.Error("more is closed than the reservations")
		}
	})
	t.Run("When groups close and open, it should say for which offerings Has may have changed", func(t *testing.T) {
		u, clk := newUnavailable()
		since := func(sequence uint64) map[Change]int {
			changes, known := u.Since(sequence)
			NewWithT(t).Expect(known).To(BeTrue(), "the changes aren't known")
			counts := map[Change]int{}
			for _, change := range changes {
				counts[change]++
			}
			return counts
		}
		zone := Change{Group: Group{Zone: "a", CapacityType: "on-demand"}}
		counted := Change{}
		until := lacking(u, four...)
		exceeding(u, in("b", "m5.large"))
		if got := since(0); got[zone] != 1 || got[counted] != 1 {
			t.Errorf("closed: %v", got)
		}
		sequence := u.Sequence()
		clk.SetTime(until)
		if u.Sequence() == sequence {
			t.Error("the sequence stays")
		}
		if got := since(sequence); got[zone] != 1 || got[counted] != 1 {
			t.Errorf("opened: %v", got)
		}
	})
}

type offer struct {
	zone, capacityType string
	price              float64
	unavailable        bool
}

func instanceType(name, arch, cpu string, offers ...offer) *karpcloudprovider.InstanceType {
	it := &karpcloudprovider.InstanceType{
		Name: name,
		Requirements: karpscheduling.NewRequirements(
			karpscheduling.NewRequirement(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, name),
			karpscheduling.NewRequirement(corev1.LabelArchStable, corev1.NodeSelectorOpIn, arch),
		),
		Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
		Overhead: &karpcloudprovider.InstanceTypeOverhead{KubeReserved: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}},
	}
	for _, o := range offers {
		it.Offerings = append(it.Offerings, &karpcloudprovider.Offering{
			Requirements: karpscheduling.NewRequirements(
				karpscheduling.NewRequirement(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, o.zone),
				karpscheduling.NewRequirement(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, o.capacityType),
			),
			Price: o.price, Available: !o.unavailable,
		})
	}
	return it
}

func TestCheapest(t *testing.T) {
	types := []*karpcloudprovider.InstanceType{
		instanceType("c2-small", "amd64", "2", offer{"a", "on-demand", 0.021, false}, offer{"b", "on-demand", 0.021, false}),
		instanceType("c4-large", "amd64", "4", offer{"a", "on-demand", 0.096, false}, offer{"a", "spot", 0.031, false}, offer{"b", "spot", 0.029, true}),
		instanceType("c4-arm", "arm64", "4", offer{"a", "on-demand", 0.080, false}),
	}
	in := func(key string, values ...string) *karpscheduling.Requirement {
		return karpscheduling.NewRequirement(key, corev1.NodeSelectorOpIn, values...)
	}
	for _, tc := range []struct {
		name         string
		requirements []*karpscheduling.Requirement
		cpu          string
		want         []string
	}{
		{"When everything fits, it should order by price and leave out what is unavailable", nil, "1",
			[]string{"c2-small/a/on-demand", "c2-small/b/on-demand", "c4-large/a/spot", "c4-arm/a/on-demand", "c4-large/a/on-demand"}},
		{"When the requests are as big as the capacity, it should remember the overhead", nil, "2",
			[]string{"c4-large/a/spot", "c4-arm/a/on-demand", "c4-large/a/on-demand"}},
		{"When an architecture is required, it should take no other", []*karpscheduling.Requirement{in(corev1.LabelArchStable, "arm64")}, "1",
			[]string{"c4-arm/a/on-demand"}},
		{"When a zone is required, it should take no other", []*karpscheduling.Requirement{in(corev1.LabelTopologyZone, "b")}, "1",
			[]string{"c2-small/b/on-demand"}},
		{"When a capacity type is required, it should take no other", []*karpscheduling.Requirement{in(karpv1.CapacityTypeLabelKey, "on-demand"), in(corev1.LabelInstanceTypeStable, "c4-large")}, "1",
			[]string{"c4-large/a/on-demand"}},
		{"When only something unavailable would do, it should find nothing", []*karpscheduling.Requirement{in(karpv1.CapacityTypeLabelKey, "spot"), in(corev1.LabelTopologyZone, "b")}, "1",
			[]string{}},
		{"When nothing is big enough, it should find nothing", nil, "64", []string{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := []string{}
			for c := range OrderOf(types).Cheapest(types, karpscheduling.NewRequirements(tc.requirements...), corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(tc.cpu)}, "seed") {
				k := c.Key()
				got = append(got, k.InstanceType+"/"+k.Zone+"/"+k.CapacityType)
			}
			NewWithT(t).Expect(got).To(BeComparableTo(tc.want))
		})
	}
	t.Run("When many claims ask for the same, it should spread them over the zones, and answer each the same again", func(t *testing.T) {
		zones := map[string]int{}
		first := func(seed string) string {
			return slices.Collect(OrderOf(types).Cheapest(types, karpscheduling.NewRequirements(), nil, seed))[0].Key().Zone
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
