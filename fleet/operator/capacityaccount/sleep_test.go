// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/fleet/conversion"
	"github.com/autonode-io/autonode/fleet/division"
	"github.com/autonode-io/autonode/internal/scopetest"
)

// available gives a cluster's component the condition of that type, for a reason.
func (k *karpenter) available(reason string) {
	k.Helper()
	management := clusters.Management.Client
	component := scopetest.Get(k.Context(), k.WithT, management, k.namespace, v1beta1.KarpenterComponent, &v1beta1.ControlPlaneComponent{})
	before := component.DeepCopy()
	component.Status.Conditions = []metav1.Condition{{Type: v1beta1.Available, Status: metav1.ConditionFalse, Reason: reason, LastTransitionTime: metav1.Now()}}
	k.Expect(management.Status().Patch(k.Context(), component, client.MergeFrom(before))).To(Succeed())
}

func TestSleep(t *testing.T) {
	f := newFixture(t, "asleep", "blue", "green")
	f.change(func(spec *autonodev1alpha1.CapacityAccountSpec) {
		spec.Members = []autonodev1alpha1.CapacityMember{guaranteed(f.namespace, "blue", 4), guaranteed(f.namespace, "green", 1)}
	})
	blue, green := f.karpenters["blue"], f.karpenters["green"]
	f.reconcile()
	f.reconcile()
	blue.want(4)
	f.settle()
	green.want(10)
	f.settle()
	f.Expect([]int{blue.machines(), green.machines()}).To(Equal([]int{4, 6}))

	t.Run("When a cluster is asleep and has Machines, it should keep what these take", func(t *testing.T) {
		blue.available(v1beta1.AsleepReason)
		f.settleAfter(division.InFlight)
		f.settleAfter(division.InFlight)
		NewWithT(t).Expect([]int{blue.machines(), green.machines()}).To(Equal([]int{4, 6}))
		NewWithT(t).Expect(f.granted("blue").Granted).To(HaveKeyWithValue(reserved, int64(4)))
	})
	t.Run("When its Machines have gone, a request in flight should still count", func(t *testing.T) {
		g := NewWithT(t)
		blue.remove(4)
		f.reconcile()
		delete(f.karpenters, "blue") // it doesn't run any more
		g.Expect(f.pass(division.InFlight-time.Second)).To(BeNumerically("<=", 2*time.Second), "it reconciles again")
		f.settle()
		g.Expect(green.machines()).To(Equal(6))
		g.Expect(f.granted("blue").Granted).To(HaveKeyWithValue(reserved, int64(4)))
	})
	t.Run("When that is over, its lease should be zero, and its guarantee be lent without its Karpenter", func(t *testing.T) {
		g := NewWithT(t)
		f.settleAfter(2 * time.Second)
		f.pass(figures)
		g.Expect(f.granted("blue").Granted).NotTo(HaveKey(reserved))
		g.Expect(conversion.Lease(blue.lease()).Limit).NotTo(HaveKey(reserved))
		g.Expect(green.machines()).To(Equal(10))
		g.Expect(f.pool()).To(HaveField("Lent", "4"))
	})
	t.Run("When it sleeps for long, it should not be reported", func(t *testing.T) {
		g := NewWithT(t)
		for range 3 {
			f.settleAfter(silent)
			g.Expect(f.condition(autonodev1alpha1.MembersGranted)).To(is(metav1.ConditionTrue, autonodev1alpha1.AsExpectedReason, "2 clusters share 1 pool"))
		}
		g.Expect(f.said(autonodev1alpha1.NotAcknowledgedReason)).To(BeFalse())
	})
	t.Run("When it wakes, its Karpenter should request capacity again, and reclaim its guarantee", func(t *testing.T) {
		g := NewWithT(t)
		blue.available(v1beta1.ReplicasUnavailableReason)
		f.settle()
		g.Expect(green.lease().Spec.Reclaim).To(BeEmpty(), "nothing is requested yet")
		blue.request(1, 3)
		f.reconcile()
		f.pass(figures)
		g.Expect(green.lease().Spec.Reclaim).To(ConsistOf(And(HaveField("Pool", reserved), HaveField("Limit", int64(7)))))
		green.remove(3)
		for range 4 {
			green.step()
			f.reconcile()
		}
		g.Expect(f.granted("blue").Granted).To(HaveKeyWithValue(reserved, int64(3)))
	})
	t.Run("When it doesn't acknowledge after it woke, it should be reported", func(t *testing.T) {
		f.reconcile()
		f.pass(silent)
		NewWithT(t).Expect(f.condition(autonodev1alpha1.MembersGranted)).To(HaveField("Status", metav1.ConditionFalse))
	})
}
