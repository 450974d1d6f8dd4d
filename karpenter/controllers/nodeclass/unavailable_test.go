// SPDX-License-Identifier: Apache-2.0

package nodeclass_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

func TestUnavailable(t *testing.T) {
	f := start(t, "")
	small := sized("2", "4Gi", "0.021")
	small[clusterv1.AutoscalerMaxSizeAnnotation] = "1"
	template := f.template("c2-small", small)
	f.template("c4-big", sized("4", "8Gi", "0.096"))
	f.nodeClass(nil)
	f.ready()
	// seen returns why the smaller template is unavailable, and the cheapest available one.
	seen := func() (string, error) {
		nodeClass, err := f.get()
		if err != nil || len(nodeClass.Status.Templates) != 2 {
			return "", err
		}
		return nodeClass.Status.Templates[0].Unavailable + " " + nodeClass.Status.Cheapest, nil
	}
	const fine = " c2-small $0.021"
	t.Run("When a template is available, it should report the pods of its nodes only", func(t *testing.T) {
		f.Eventually(seen).Should(Equal(fine))
		f.Expect(f.stored().Status.Templates[0].Pods).To(BeEquivalentTo(110))
	})
	t.Run("When a source has as many machines as it may, it should say that it is full, until one goes", func(t *testing.T) {
		f.machines.ObserveMachine("1", inventory.Machine{Origin: inventory.Origin{Source: "TestMachineTemplate." + environment.TestMachine.Group + "/c2-small"}})
		f.Eventually(seen).Should(Equal("Full c4-big $0.096"))
		f.machines.ForgetMachine("1")
		f.Eventually(seen).Should(Equal(fine))
	})
	t.Run("When a source is paused, it should say so", func(t *testing.T) {
		annotations := sized("2", "4Gi", "0.021")
		annotations[clusterv1.PausedAnnotation] = ""
		template.SetAnnotations(annotations)
		f.Expect(f.Admin.Update(t.Context(), template)).To(Succeed())
		f.Eventually(seen).Should(Equal("Paused c4-big $0.096"))
		template.SetAnnotations(sized("2", "4Gi", "0.021"))
		f.Expect(f.Admin.Update(t.Context(), template)).To(Succeed())
		f.Eventually(seen).Should(Equal(fine))
	})
	t.Run("When the node class sets how many pods a node has, it should report that", func(t *testing.T) {
		f.edit(func(n *v1alpha1.ClusterAPINodeClass) {
			n.Spec.Kubelet = &v1alpha1.KubeletConfiguration{MaxPods: ptr.To[int32](20)}
		})
		f.Eventually(func() int64 { return f.stored().Status.Templates[0].Pods }).Should(BeEquivalentTo(20))
	})
	t.Run("When a quota is exhausted that counts a template, it should say which, and until when", func(t *testing.T) {
		f.unavailable.Share([]offering.ClosedQuota{{QuotaName: capacity.QuotaName{Name: "on-demand c2"}, Until: f.unavailable.Now().Add(time.Hour)}})
		f.Eventually(seen).Should(Equal("Quota c4-big $0.096"))
		f.condition(v1alpha1.ConditionOfferingsAvailable, "True", v1alpha1.QuotaExhaustedReason, MatchRegexp(
			`^quota "on-demand c2" is exhausted, as another cluster of the account reports, until \d\d:\d\d:\d\d UTC \(2 offerings\)$`))
		f.unavailable.Share(nil)
		f.Eventually(seen).Should(Equal(fine))
		f.condition(v1alpha1.ConditionOfferingsAvailable, "True", "OfferingsAvailable")
	})
	t.Run("When every offering of a template failed, it should report BackOff, and not before", func(t *testing.T) {
		f.unavailable.Mark(offering.Key{InstanceType: "c2-small", Zone: "a", CapacityType: "on-demand"}, "NoHosts")
		f.Consistently(seen, "200ms").Should(Equal(fine))
		f.unavailable.Mark(offering.Key{InstanceType: "c2-small", Zone: "b", CapacityType: "on-demand"}, "NoHosts")
		f.Eventually(seen).Should(Equal("BackOff c4-big $0.096"))
		f.condition(v1alpha1.ConditionOfferingsAvailable, "True", "OfferingsAvailable")
	})
	t.Run("When every offering of every template failed, it should say why and how many pods wait, and stay ready", func(t *testing.T) {
		f.unavailable.MarkExhausted(offering.Key{InstanceType: "c4-big", Zone: "a", CapacityType: "on-demand"}, "InsufficientCapacity")
		f.unavailable.MarkExhausted(offering.Key{InstanceType: "c4-big", Zone: "b", CapacityType: "on-demand"}, "InsufficientCapacity")
		f.condition(v1alpha1.ConditionOfferingsAvailable, "False", v1alpha1.LaunchesFailReason, MatchRegexp(
			`^nothing can be launched: 4 offerings are in back-off after failed launches: InsufficientCapacity \(2\), NoHosts \(2\); `+
				`the next try is on-demand c2-small in zone a at \d\d:\d\d:\d\d UTC; 12 pods of the cluster wait$`))
		f.ready()
		f.unavailable.Explain(offering.Key{InstanceType: "c4-big", Zone: "b", CapacityType: "on-demand"}, "TaskFailure: default resource pool resolves\nto multiple instances")
		f.condition(v1alpha1.ConditionOfferingsAvailable, "False", v1alpha1.LaunchesFailReason, ContainSubstring(
			"NoHosts (2), the last one of on-demand c4-big in zone b: TaskFailure: default resource pool resolves to multiple instances; the next try"))
	})
	t.Run("When some capacity was returned, it should say that it can launch again", func(t *testing.T) {
		f.unavailable.Clear(offering.Key{InstanceType: "c4-big", Zone: "a", CapacityType: "on-demand"})
		f.condition(v1alpha1.ConditionOfferingsAvailable, "True", "OfferingsAvailable")
	})
	t.Run("When no launch succeeds, it should say so though offerings are left to try, until one does", func(t *testing.T) {
		third := f.template("c8-large", sized("8", "16Gi", "0.2"))
		f.Eventually(func() int { return len(f.stored().Status.Templates) }).Should(Equal(3))
		f.condition(v1alpha1.ConditionOfferingsAvailable, "True", "OfferingsAvailable")
		for _, zone := range []string{"a", "b"} {
			f.unavailable.Mark(offering.Key{InstanceType: third.GetName(), Zone: zone, CapacityType: "on-demand"}, "NoHosts")
		}
		f.condition(v1alpha1.ConditionOfferingsAvailable, "True", v1alpha1.LaunchesFailReason, Equal(
			"every launch fails: 5 offerings are in back-off after failed launches: NoHosts (4), InsufficientCapacity (1); Karpenter tries other offerings; 12 pods of the cluster wait"))
		f.ready()
		f.unavailable.Works(offering.Key{InstanceType: "c4-big", Zone: "a", CapacityType: "on-demand"}, f.unavailable.Now())
		f.condition(v1alpha1.ConditionOfferingsAvailable, "True", "OfferingsAvailable")
	})
}
