// SPDX-License-Identifier: Apache-2.0

package offering

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	karpscheduling "sigs.k8s.io/karpenter/pkg/scheduling"
)

func TestRejections(t *testing.T) {
	in := func(zone string, available bool) *karpcloudprovider.Offering {
		return &karpcloudprovider.Offering{Available: available, Price: 1, Requirements: karpscheduling.NewLabelRequirements(map[string]string{
			corev1.LabelTopologyZone: zone, karpv1.CapacityTypeLabelKey: key.CapacityType,
		})}
	}
	its := []*karpcloudprovider.InstanceType{
		{Name: "c2-small", Offerings: karpcloudprovider.Offerings{in("a", true)}},
		{Name: "c4-large", Offerings: karpcloudprovider.Offerings{in("a", true), in("b", true)}},
	}
	t.Run("When a NodePool's offering is rejected, it should be unavailable to that one only, with back-off", func(t *testing.T) {
		clk := clocktesting.NewFakeClock(time.Now())
		r := NewRejections(clk)
		for i, want := range []time.Duration{BaseTTL, 2 * BaseTTL} {
			until := r.Mark("general", key, "MachineRejected")
			if got := until.Sub(clk.Now()); got != want {
				t.Fatalf("rejection %d: unavailable for %s, want %s", i+1, got, want)
			}
			offered := r.Offered("general", its)
			if offered[0] != its[0] || !offered[1].Offerings[1].Available || offered[1].Offerings[0].Available {
				t.Errorf("rejection %d: %v", i+1, offered)
			}
			if !its[1].Offerings[0].Available {
				t.Error("what others get has changed")
			}
			if other := r.Offered("other", its); &other[0] != &its[0] {
				t.Error("another NodePool gets the instance types themselves")
			}
			if entry, ok := r.Entry("general", key); !ok || entry.Reason != "MachineRejected" || !entry.Until.Equal(until) {
				t.Errorf("entry %v, %t", entry, ok)
			}
			if len(r.Entries()) != 1 {
				t.Errorf("entries %v", r.Entries())
			}
			clk.SetTime(until)
			if _, ok := r.Entry("general", key); ok || &r.Offered("general", its)[0] != &its[0] {
				t.Error("unavailable after its time")
			}
		}
	})
	t.Run("When a machine of the offering is created, the next rejection should start again", func(t *testing.T) {
		clk := clocktesting.NewFakeClock(time.Now())
		r := NewRejections(clk)
		clk.SetTime(r.Mark("general", key, "MachineRejected"))
		if len(r.Entries()) != 0 {
			t.Errorf("entries %v", r.Entries())
		}
		clk.Step(time.Second)
		r.Works("general", key)
		if got := r.Mark("general", key, "MachineRejected").Sub(clk.Now()); got != BaseTTL {
			t.Errorf("unavailable for %s, want %s", got, BaseTTL)
		}
	})
	t.Run("When a NodePool's rejections are over, it should be forgotten", func(t *testing.T) {
		clk := clocktesting.NewFakeClock(time.Now())
		r := NewRejections(clk)
		r.Mark("general", key, "MachineRejected")
		clk.Step(BaseTTL + MaxTTL + time.Second)
		r.Mark("other", key, "MachineRejected")
		if len(r.pools) != 1 {
			t.Errorf("it keeps %d NodePools", len(r.pools))
		}
	})
	t.Run("When there are none, nothing should be unavailable", func(t *testing.T) {
		r := NewRejections(clocktesting.NewFakeClock(time.Now()))
		r.Works("general", key)
		if _, ok := r.Entry("general", key); ok || r.Entries() != nil || &r.Offered("general", its)[0] != &its[0] {
			t.Error("it tracks something")
		}
	})
}
