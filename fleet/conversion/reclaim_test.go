// SPDX-License-Identifier: Apache-2.0

package conversion_test

import (
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/fleet/conversion"
	"github.com/autonode-io/autonode/fleet/division"
)

func TestReclaims(t *testing.T) {
	by := time.Unix(1_000_000, 0)
	t.Run("When the operator writes what is to be returned, Karpenter should read the same", func(t *testing.T) {
		g, l := NewWithT(t), lease()
		keep := division.Amounts{"a": 2, "b": 0}
		l.Spec.Reclaim = conversion.LeaseReclaims(keep, map[string][]string{"a": {"clusters/blue"}})
		g.Expect(conversion.Lease(l).Reclaims).To(Equal(keep))
		g.Expect(l.Spec.Reclaim[0].For).To(ConsistOf("clusters/blue"))
	})
	t.Run("When Karpenter reports deadlines, its next process should read the same, and at most as many as a list may have", func(t *testing.T) {
		g, steps, status := NewWithT(t), []division.Step{{Limit: 4, By: by}, {Limit: 2, By: by.Add(time.Minute)}}, &autonodev1alpha1.CapacityLeaseStatus{}
		conversion.SetReclaimSteps(status, []division.Reclaim{{Pool: "a", Steps: steps}})
		g.Expect(conversion.ReclaimSteps(status)).To(Equal(map[string][]division.Step{"a": steps}))
		conversion.SetReclaimSteps(status, slices.Repeat([]division.Reclaim{{Pool: "b", Steps: steps}}, 200))
		g.Expect(status.Reclaim).To(HaveLen(256))
	})
	t.Run("When a reported deadline isn't a time, it should be left out", func(t *testing.T) {
		status := &autonodev1alpha1.CapacityLeaseStatus{Reclaim: []autonodev1alpha1.CapacityReclaimStep{{Pool: "a", By: scalar.Time{Malformed: "soon"}}, {Pool: "b"}}}
		NewWithT(t).Expect(conversion.ReclaimSteps(status)).To(BeEmpty())
	})
	t.Run("When the operator records what isn't lent, it should read the same", func(t *testing.T) {
		retained := map[string]division.Retained{"a": {Amount: 3, Until: by}}
		NewWithT(t).Expect(conversion.Retained(&autonodev1alpha1.CapacityGrant{Retained: conversion.RecordedRetained(retained)})).To(Equal(retained))
	})
}
