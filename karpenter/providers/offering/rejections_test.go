// SPDX-License-Identifier: Apache-2.0

package offering

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
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
			NewWithT(t).Expect(until.Sub(clk.Now())).To(Equal(want), "rejection %d", i+1)
			offered := r.Offered("general", its)
			if offered[0] != its[0] || !offered[1].Offerings[1].Available || offered[1].Offerings[0].Available {
				t.Errorf("rejection %d: %v", i+1, offered)
			}
			NewWithT(t).Expect(its[1].Offerings[0].Available).To(BeTrue(), "what others get has changed")
			if other := r.Offered("other", its); &other[0] != &its[0] {
				t.Error("another NodePool gets the instance types themselves")
			}
			if entry, ok := r.Entry("general", key); !ok || entry.Reason != "MachineRejected" || !entry.Until.Equal(until) {
				t.Errorf("entry %v, %t", entry, ok)
			}
			NewWithT(t).Expect(r.Entries()).To(HaveLen(1))
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
		NewWithT(t).Expect(r.Entries()).To(BeEmpty())
		clk.Step(time.Second)
		r.Works("general", key)
		NewWithT(t).Expect(r.Mark("general", key, "MachineRejected").Sub(clk.Now())).To(Equal(BaseTTL))
	})
	t.Run("When a NodePool's rejections are over, it should be forgotten", func(t *testing.T) {
		clk := clocktesting.NewFakeClock(time.Now())
		r := NewRejections(clk)
		r.Mark("general", key, "MachineRejected")
		clk.Step(BaseTTL + MaxTTL + time.Second)
		r.Mark("other", key, "MachineRejected")
		NewWithT(t).Expect(r.pools).To(HaveLen(1))
	})
	t.Run("When there are none, nothing should be unavailable", func(t *testing.T) {
		r := NewRejections(clocktesting.NewFakeClock(time.Now()))
		r.Works("general", key)
		if _, ok := r.Entry("general", key); ok || r.Entries() != nil || &r.Offered("general", its)[0] != &its[0] {
			t.Error("it tracks something")
		}
	})
}
