// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/capacity/conversion"
)

// request reports that launches wait which take this much of the reservation each.
func (k *karpenter) request(amount, count int64) {
	k.Helper()
	lease := k.lease()
	k.report(func(status *autonodev1alpha1.CapacityLeaseStatus) {
		conversion.SetReport(status, capacity.Report{
			Sequence: lease.Spec.Sequence, Held: conversion.Lease(lease).Amounts, Requests: []capacity.Request{{Charges: capacity.Amounts{reserved: amount}, Count: count}},
		})
	})
}

func TestLine(t *testing.T) {
	f := newFixture(t, "line", "blue", "green")
	blue, green := f.karpenters["blue"], f.karpenters["green"]
	f.reconcile()
	f.reconcile()
	blue.want(8)
	f.settle()

	t.Run("When a request doesn't fit, it should hold nothing for a minute", func(t *testing.T) {
		g := NewWithT(t)
		green.request(4, 1)
		f.reconcile()
		g.Expect(f.pool()).To(And(HaveField("Waiting", "4"), HaveField("Held", "")))
		g.Expect(f.pass(figures)).To(BeNumerically("<=", capacity.HoldAfter), "it decides again when the minute has passed")
		g.Expect(blue.lease().Spec.Pools[0].LaunchUpTo).To(BeNil())
	})
	t.Run("When it has waited for that long, what becomes free should be held for it, and say for whom", func(t *testing.T) {
		g := NewWithT(t)
		f.pass(capacity.HoldAfter)
		f.pass(figures)
		g.Expect(f.pool()).To(And(HaveField("Held", "4"), HaveField("HeldFor", ConsistOf("line/green"))))
		g.Expect(blue.lease().Spec.Pools[0].LaunchUpTo).To(HaveValue(BeZero()))
		g.Expect(f.said("RoomHeld", "line/green", "4 of reservation/cr-1")).To(BeTrue())
	})
	t.Run("When the operator is replaced, it should hold on", func(t *testing.T) {
		g := NewWithT(t)
		f.Controller = New(f.Controller.Config)
		before := f.writes
		f.reconcile()
		f.pass(figures)
		g.Expect(f.pool()).To(HaveField("Held", "4"))
		g.Expect(f.writes-before).To(BeNumerically("<=", 1), "but for figures nothing has changed")
	})
	t.Run("When a machine of another cluster goes, that should not launch again before the request is served", func(t *testing.T) {
		g := NewWithT(t)
		blue.remove(1)
		blue.want(1)
		blue.step()
		f.reconcile()
		blue.step()
		g.Expect(blue.machines()).To(Equal(7))
		blue.remove(1)
		for range 3 {
			blue.step()
			f.reconcile()
		}
		g.Expect(green.lease().Spec.Pools[0].Amount).To(BeEquivalentTo(4), "granted")
		g.Expect(blue.machines()).To(Equal(6))
	})
	t.Run("When nothing becomes free for too long, it should hold no more, and say why", func(t *testing.T) {
		g := NewWithT(t)
		green.request(5, 1) // instead of the other one
		f.reconcile()
		f.pass(capacity.HoldAfter)
		g.Expect(f.said("RoomHeld")).To(BeTrue())
		f.pass(capacity.HoldWithout - time.Second)
		g.Expect(blue.lease().Spec.Pools[0].LaunchUpTo).NotTo(BeNil())
		f.pass(time.Second)
		g.Expect(f.said("HoldEnded", "line/green", "1 of reservation/cr-1 did not become free")).To(BeTrue())
		f.pass(figures)
		g.Expect(f.pool()).To(HaveField("Held", ""))
		g.Expect(blue.lease().Spec.Pools[0].LaunchUpTo).To(BeNil())
	})
}
