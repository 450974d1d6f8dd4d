// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/fleet/conversion"
	"github.com/autonode-io/autonode/fleet/division"
)

// guaranteed is a member with guaranteed machines of the reservation.
func guaranteed(namespace, name string, machines int64) autonodev1alpha1.CapacityMember {
	return autonodev1alpha1.CapacityMember{
		HostedCluster: &autonodev1alpha1.HostedClusterReference{Namespace: namespace, Name: name},
		Guaranteed:    []autonodev1alpha1.CapacityShare{{Reservation: "cr-1", Amounts: autonodev1alpha1.CapacityAmounts{"machines": scalar.Number(machines)}}},
	}
}

// request reports that launches wait which take this much of the reservation each.
func (k *karpenter) request(amount, count int64) {
	k.Helper()
	lease := k.lease()
	k.report(func(status *autonodev1alpha1.CapacityLeaseStatus) {
		conversion.SetReport(status, division.Report{
			Sequence: lease.Spec.Sequence, Reserved: conversion.Lease(lease).Limit, Requests: []division.Request{{Charges: division.Amounts{reserved: amount}, Count: count}},
		})
	})
}

func TestReclaim(t *testing.T) {
	f := newFixture(t, "reclaim", "blue", "green")
	f.change(func(spec *autonodev1alpha1.CapacityAccountSpec) {
		spec.ReclaimGracePeriod = &scalar.Duration{Duration: 30 * time.Minute}
		spec.Members = []autonodev1alpha1.CapacityMember{guaranteed(f.namespace, "blue", 4), guaranteed(f.namespace, "green", 1)}
	})
	blue, green := f.karpenters["blue"], f.karpenters["green"]
	f.reconcile()
	f.reconcile()
	var asked []autonodev1alpha1.CapacityReclaim

	t.Run("When a guaranteed amount is unused, others should use it, and the status say so", func(t *testing.T) {
		g := NewWithT(t)
		green.want(12)
		f.settle()
		f.pass(figures)
		g.Expect(green.machines()).To(Equal(10))
		g.Expect(f.pool()).To(And(HaveField("Lent", "4"), HaveField("Reclaiming", "")))
		g.Expect(blue.lease().Spec.Pools).To(ConsistOf(And(HaveField("Available", BeZero()), HaveField("Attainable", int64(4)))))
		g.Expect(green.lease().Spec.Pools).To(ConsistOf(HaveField("Attainable", int64(1))))
	})
	t.Run("When its cluster requests it, the borrower should be asked for that and no more", func(t *testing.T) {
		g := NewWithT(t)
		blue.request(1, 3)
		f.reconcile()
		f.pass(figures)
		asked = green.lease().Spec.Reclaim
		g.Expect(asked).To(ConsistOf(And(HaveField("Pool", reserved), HaveField("Limit", int64(7)), HaveField("For", ConsistOf("reclaim/blue")))))
		g.Expect(green.lease().Spec.ReclaimGracePeriod).To(HaveValue(HaveField("Duration", 30*time.Minute)))
		g.Expect(f.pool()).To(And(HaveField("Reclaiming", "3"), HaveField("ReclaimingFor", ConsistOf("reclaim/blue")), HaveField("Waiting", "5")))
		g.Expect(f.said(autonodev1alpha1.CapacityReclaimingReason, "reclaim/blue", reserved, "within 30m0s, reclaim/green keeps 7")).To(BeTrue())
	})
	t.Run("When the operator is replaced, nothing should be written", func(t *testing.T) {
		g := NewWithT(t)
		f.Controller = New(f.Controller.Config)
		before := f.writes
		f.reconcile()
		g.Expect(f.writes-before).To(BeNumerically("<=", 1), "but for figures nothing has changed")
		g.Expect(green.lease().Spec.Reclaim).To(Equal(asked))
	})
	t.Run("When machines go, the borrower should launch none in their place, and the cluster be granted them", func(t *testing.T) {
		g := NewWithT(t)
		green.remove(2)
		green.want(2)
		for range 4 {
			green.step()
			f.reconcile()
		}
		g.Expect(green.machines()).To(Equal(8))
		g.Expect(green.lease().Spec.Reclaim).To(Equal(asked))
		g.Expect(f.granted("blue").Granted[reserved]).To(Equal(int64(2)))
	})
	t.Run("When the deadline has passed, the account should name who hasn't returned what", func(t *testing.T) {
		g := NewWithT(t)
		blue.request(1, 3)
		f.pass(30*time.Minute + 2*time.Minute)
		g.Expect(f.condition(autonodev1alpha1.MembersGranted)).NotTo(HaveField("Reason", autonodev1alpha1.ReclaimOverdueReason))
		f.pass(overdueAfter)
		g.Expect(f.condition(autonodev1alpha1.MembersGranted)).To(is(metav1.ConditionFalse, autonodev1alpha1.ReclaimOverdueReason, "1 of reservation/cr-1 of reclaim/green"))
		g.Expect(f.granted("green").Granted[reserved]).To(Equal(int64(8)), "it stays granted")
	})
	t.Run("When the rest has gone, nothing should be asked any more", func(t *testing.T) {
		g := NewWithT(t)
		green.remove(1)
		for range 4 {
			green.step()
			f.reconcile()
		}
		blue.request(1, 3)
		f.pass(figures)
		g.Expect(green.lease().Spec.Reclaim).To(BeEmpty())
		g.Expect(f.granted("blue").Granted[reserved]).To(Equal(int64(3)))
		g.Expect(f.condition(autonodev1alpha1.MembersGranted)).To(HaveField("Status", metav1.ConditionTrue))
		g.Expect(f.said(autonodev1alpha1.CapacityReclaimedReason, reserved)).To(BeTrue())
	})
	t.Run("When the cluster wants it no more, it should not be lent again for an hour, also by another operator", func(t *testing.T) {
		g := NewWithT(t)
		blue.request(1, 0)
		green.want(3)
		f.Controller = New(f.Controller.Config)
		lent := func(after time.Duration) int {
			f.clock.SetTime(f.clock.Now().Add(after))
			for range 4 {
				f.reconcile()
				green.step()
				blue.step()
			}
			return green.machines()
		}
		g.Expect(lent(0)).To(Equal(7))
		g.Expect(lent(idle)).To(Equal(7), "although it is idle")
		g.Expect(lent(division.RetainFor - 10*time.Minute)).To(Equal(7))
		lent(11 * time.Minute)
		g.Expect(lent(idle)).To(Equal(10))
	})
}

func TestPreemption(t *testing.T) {
	f := newFixture(t, "preemption", "blue", "green")
	high := guaranteed(f.namespace, "green", 1)
	high.Priority = 1
	f.change(func(spec *autonodev1alpha1.CapacityAccountSpec) {
		spec.Members = append([]autonodev1alpha1.CapacityMember{high}, spec.Members...)
	})
	blue, green := f.karpenters["blue"], f.karpenters["green"]
	f.reconcile()
	f.reconcile()
	blue.want(8)
	f.settle()

	t.Run("When preemption is off, a large request should wait until enough is free", func(t *testing.T) {
		g := NewWithT(t)
		green.request(4, 1)
		f.reconcile()
		f.pass(figures)
		g.Expect(f.pool()).To(And(HaveField("Waiting", "4"), HaveField("Reclaiming", "")))
		g.Expect(blue.lease().Spec.Reclaim).To(BeEmpty())
		g.Expect(green.lease().Spec.Pools).To(ConsistOf(HaveField("Attainable", int64(1))))
	})
	t.Run("When lower priorities are preempted, they should be asked for what it lacks, and the request be granted once they have returned it", func(t *testing.T) {
		g := NewWithT(t)
		f.change(func(spec *autonodev1alpha1.CapacityAccountSpec) {
			spec.Preemption = autonodev1alpha1.PreemptionLowerPriority
		})
		f.reconcile()
		f.pass(figures)
		g.Expect(blue.lease().Spec.Reclaim).To(ConsistOf(And(HaveField("Limit", int64(6)), HaveField("For", ConsistOf("preemption/green")))))
		g.Expect(green.lease().Spec.Pools).To(ConsistOf(HaveField("Attainable", BeNumerically(">=", 4))))
		g.Expect(f.pool()).To(And(HaveField("Reclaiming", "2"), HaveField("ReclaimingFor", ConsistOf("preemption/green"))))
		g.Expect(f.said(autonodev1alpha1.CapacityReclaimingReason, "preemption/green reclaims "+reserved, "preemption/blue keeps 6")).To(BeTrue())
		blue.remove(2)
		blue.want(2)
		for range 4 {
			blue.step()
			f.reconcile()
		}
		g.Expect(blue.machines()).To(Equal(6))
		g.Expect(f.granted("green").Granted[reserved]).To(Equal(int64(4)))
	})
}
