// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
)

// exhausted has a Karpenter report offerings that the infrastructure had no capacity for.
func (k *karpenter) exhausted(offerings ...autonodev1alpha1.UnavailableOffering) {
	k.Helper()
	lease := k.lease()
	before := lease.DeepCopy()
	lease.Status.Unavailable = offerings
	k.Expect(clusters.Management.Client.Status().Patch(k.Context(), lease, client.MergeFrom(before))).To(Succeed())
}

func TestUnavailable(t *testing.T) {
	f, elsewhere := newFixture(t, "exhausted", "blue", "green"), newFixture(t, "exhausted-elsewhere", "red")
	f.settle()
	elsewhere.settle()
	blue, green, red := f.karpenters["blue"], f.karpenters["green"], elsewhere.karpenters["red"]
	// Hints are written now and then.
	later := func() {
		for _, each := range []*fixture{f, elsewhere} {
			each.clock.SetTime(each.clock.Now().Add(hints))
			each.reconcile()
		}
	}
	until := f.clock.Now().Add(time.Minute)
	spot := autonodev1alpha1.UnavailableOffering{InstanceType: typeName, Zone: "a", CapacityType: "spot", Reason: "Capacity", Until: scalar.NewTime(until)}

	t.Run("When a cluster finds no capacity, the lease of the account's other cluster should say so until that is tried again", func(t *testing.T) {
		g := NewWithT(t)
		blue.exhausted(spot)
		later()
		closed := green.lease().Spec.Unavailable
		g.Expect(closed).To(HaveLen(1))
		g.Expect(closed[0].Until.At()).To(BeTemporally("==", until))
		closed[0].Until = spot.Until // the same time in another location
		g.Expect(closed[0]).To(Equal(spot))
	})
	t.Run("When it is the cluster's own finding, its lease should not repeat it", func(t *testing.T) {
		NewWithT(t).Expect(blue.lease().Spec.Unavailable).To(BeEmpty())
	})
	t.Run("When a cluster belongs to another account, its lease should not say so", func(t *testing.T) {
		NewWithT(t).Expect(red.lease().Spec.Unavailable).To(BeEmpty())
	})
	t.Run("When others have reported to a cluster, its grant should be the same", func(t *testing.T) {
		lease := green.lease()
		NewWithT(t).Expect(lease.Status.AcknowledgedSequence).To(Equal(lease.Spec.Sequence))
	})
	t.Run("When that time has come, the lease should say nothing of it any more, though the report is still there", func(t *testing.T) {
		g := NewWithT(t)
		next := f.reconcile()
		g.Expect(f.clock.Now().Add(next)).To(BeTemporally("<=", until.Add(lag)), "it reconciles again by then")
		f.clock.SetTime(until)
		f.reconcile()
		g.Expect(blue.lease().Status.Unavailable).To(HaveLen(1))
		g.Expect(green.lease().Spec.Unavailable).To(BeEmpty())
	})
}
