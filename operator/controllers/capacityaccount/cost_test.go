// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
)

func TestCost(t *testing.T) {
	f := newFixture(t, "spending", "blue", "green")
	blue, green := f.karpenters["blue"], f.karpenters["green"]
	f.Expect(f.Controller.Cost("spending")).To(BeNil(), "nothing was counted yet")
	f.change(func(spec *autonodev1alpha1.CapacityAccountSpec) {
		spec.Commitments = []autonodev1alpha1.CapacityCommitment{{Name: "instances", Instances: ptr.To[int32](2)}, {Name: "unreadable", HourlySpend: "lots"}}
	})
	blue.want(3)
	f.settle()
	green.want(1)
	f.settle()

	t.Run("When clusters share a commitment, each should cost its part, and the commitment should say what is used", func(t *testing.T) {
		g := NewWithT(t)
		report := f.Controller.Cost("spending")
		// Four at 0.10 each, of which two are committed at no discount.
		g.Expect(report.Total).To(And(HaveField("Machines", int64(4)), HaveField("Paid", BeNumerically("~", 0.4, 1e-9)), HaveField("Committed", BeNumerically("~", 0.2, 1e-9))))
		g.Expect(report.Rows).To(ConsistOf(
			And(HaveField("Cluster", "spending/blue"), HaveField("Committed", BeNumerically("~", 0.15, 1e-9))),
			And(HaveField("Cluster", "spending/green"), HaveField("Committed", BeNumerically("~", 0.05, 1e-9))),
		))
		g.Expect(report.Commitments).To(ConsistOf(And(HaveField("Name", "instances"), HaveField("Used", 2.0), HaveField("Unused", 0.0))))
		g.Expect(report.Reservations).To(ConsistOf(And(HaveField("ID", "cr-1"), HaveField("Used", int64(4)), HaveField("Unused", int64(6)))))
	})
	t.Run("When a reservation has expired, the report should say so", func(t *testing.T) {
		g := NewWithT(t)
		f.change(func(spec *autonodev1alpha1.CapacityAccountSpec) {
			spec.Reservations[0].Expires = ptr.To(scalar.NewTime(f.clock.Now()))
		})
		f.reconcile()
		g.Expect(f.Controller.Cost("spending").Reservations).To(ConsistOf(HaveField("Expired", true)))
	})
	t.Run("When an account is gone, it should cost nothing any more", func(t *testing.T) {
		g := NewWithT(t)
		f.change(func(spec *autonodev1alpha1.CapacityAccountSpec) { spec.Members = nil })
		blue.remove(3)
		green.remove(1)
		f.settle()
		f.clock.SetTime(f.clock.Now().Add(4 * idle))
		f.settle()
		g.Expect(clusters.Management.Client.Delete(t.Context(), f.account)).To(Succeed())
		f.read()
		_, err := f.Controller.Reconcile(t.Context(), f.account.DeepCopy())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(client.IgnoreNotFound(clusters.Management.Client.Get(t.Context(), client.ObjectKeyFromObject(f.account), f.account))).To(Succeed())
		g.Expect(f.Controller.Cost("spending")).To(BeNil())
	})
}
