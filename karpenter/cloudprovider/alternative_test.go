// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/catalog"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// first launches a NodeClaim, and returns its offering once the caches have it and its Machine.
func (f *fixture) first(change func(*karpv1.NodeClaim)) (*karpv1.NodeClaim, offering.Key) {
	f.t.Helper()
	nodeClaim, _ := f.launch("first", change)
	f.Eventually(func(g Gomega) {
		g.Expect(f.Guest.GetClient().Get(f.ctx, client.ObjectKeyFromObject(nodeClaim), &karpv1.NodeClaim{})).To(Succeed())
		_, err := f.provider.Machines.ForNodeClaim(f.ctx, nodeClaim.UID)
		g.Expect(err).NotTo(HaveOccurred())
	}).Should(Succeed())
	return nodeClaim, inventory.OfferingOf(f.machine(nodeClaim.Name))
}

// needs3 is a claim that c4-large meets only.
func needs3(n *karpv1.NodeClaim) {
	n.Spec.Resources.Requests[corev1.ResourceCPU] = resource.MustParse("3")
}

func TestAlternative(t *testing.T) {
	onDemand := func(n *karpv1.NodeClaim) {
		n.Spec.Requirements = append(n.Spec.Requirements, requirement(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeOnDemand))
	}
	t.Run("When the offering of a launch is closed to its NodePool, the next launch should get the alternative, which is the next cheapest", func(t *testing.T) {
		for name, tc := range map[string]struct {
			change       func(*karpv1.NodeClaim)
			before, want offering.Key
		}{
			"another zone": {func(n *karpv1.NodeClaim) {
				needs3(n)
				onDemand(n)
			}, offering.Key{InstanceType: "c4-large", CapacityType: "on-demand"}, offering.Key{InstanceType: "c4-large", CapacityType: "on-demand"}},
			"another instance type": {func(n *karpv1.NodeClaim) {
				onDemand(n)
				n.Spec.Requirements = append(n.Spec.Requirements, requirement(corev1.LabelTopologyZone, "a"))
			}, offering.Key{InstanceType: "c2-small", Zone: "a", CapacityType: "on-demand"}, offering.Key{InstanceType: "c4-large", Zone: "a", CapacityType: "on-demand"}},
			"another capacity type": {func(n *karpv1.NodeClaim) {
				needs3(n)
				n.Spec.Requirements = append(n.Spec.Requirements, requirement(corev1.LabelTopologyZone, "a"))
			}, offering.Key{InstanceType: "c4-large", Zone: "a", CapacityType: "spot"}, offering.Key{InstanceType: "c4-large", Zone: "a", CapacityType: "on-demand"}},
		} {
			t.Run(name, func(t *testing.T) {
				f := newFixture(t)
				first, key := f.first(tc.change)
				said, has, ok := f.provider.Alternative(f.ctx, first, key)
				f.Expect(ok).To(BeTrue())
				f.Expect(said).NotTo(Equal(key))
				f.Expect(has).To(HaveKey(corev1.ResourceCPU))
				f.provider.Rejections.Mark("general", key, "LaunchSlow")
				second, _ := f.launch("second", tc.change)
				got := inventory.OfferingOf(f.machine(second.Name))
				f.Expect(got).To(Equal(said))
				if tc.want.Zone == "" { // which one is random
					key.Zone, got.Zone = "", ""
				}
				f.Expect(key).To(Equal(tc.before))
				f.Expect(got).To(Equal(tc.want))
			})
		}
	})

	t.Run("When nothing else may be launched, there should be no alternative", func(t *testing.T) {
		only := func(n *karpv1.NodeClaim) {
			onDemand(n)
			n.Spec.Requirements = append(n.Spec.Requirements, requirement(corev1.LabelTopologyZone, "a"))
		}
		large := offering.Key{InstanceType: "c4-large", Zone: "a", CapacityType: karpv1.CapacityTypeOnDemand}
		for name, tc := range map[string]struct {
			change  func(*karpv1.NodeClaim)
			prepare func(*fixture)
		}{
			"one offering": {change: func(n *karpv1.NodeClaim) {
				only(n)
				n.Spec.Requirements = append(n.Spec.Requirements, requirement(corev1.LabelInstanceTypeStable, "c2-small"))
			}},
			"the other one in back-off":               {only, func(f *fixture) { f.unavailable.Mark(large, "InsufficientCapacity") }},
			"the other one rejected for the NodePool": {only, func(f *fixture) { f.provider.Rejections.Mark("general", large, "MachineRejected") }},
			"the other one reserved": {func(*karpv1.NodeClaim) {}, func(f *fixture) {
				k4 := f.Template("k4", 0)
				k4.Price, k4.Offerings = nil, []catalog.Offering{
					{Zone: "a", CapacityType: karpv1.CapacityTypeOnDemand, Price: 0.010, Priced: true},
					{Zone: "a", CapacityType: karpv1.CapacityTypeReserved, Price: 0.139, Priced: true, Reservation: block, Count: inBlock},
				}
				f.selects([]template.Template{k4}, template.Cluster{FailureDomains: []string{"a"}}, template.Gaps{})
			}},
		} {
			t.Run(name, func(t *testing.T) {
				f, _ := limited(t)
				f.offer()
				if tc.prepare != nil {
					tc.prepare(f)
				}
				first, key := f.first(tc.change)
				_, _, ok := f.provider.Alternative(f.ctx, first, key)
				f.Expect(ok).To(BeFalse())
			})
		}
	})

	t.Run("When AutoNode is being turned off, there should be no alternative", func(t *testing.T) {
		f := newFixture(t)
		first, key := f.first(nil)
		turnOff(f)
		_, _, ok := f.provider.Alternative(f.ctx, first, key)
		f.Expect(ok).To(BeFalse())
	})
}
