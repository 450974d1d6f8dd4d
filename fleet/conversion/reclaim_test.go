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
		reclaims := division.Reclaims{"a": {{Limit: 2, For: []string{"clusters/blue"}}}, "b": {{}}}
		l.Spec.Reclaim = conversion.CapacityReclaims(reclaims)
		g.Expect(conversion.Lease(l).Reclaims).To(Equal(reclaims))
	})
	t.Run("When Karpenter reports deadlines, its next process should read the same, and at most as many as a list may have", func(t *testing.T) {
		g, steps := NewWithT(t), []division.Reclaim{{Limit: 4, By: by}, {Limit: 2, By: by.Add(time.Minute)}}
		reclaims := division.Reclaims{"a": steps}
		g.Expect(conversion.Reclaims(conversion.CapacityReclaims(reclaims))).To(Equal(reclaims))
		reclaims["b"] = slices.Repeat(steps, 200)
		g.Expect(conversion.CapacityReclaims(reclaims)).To(HaveLen(256))
	})
	t.Run("When a reported deadline isn't a time, the amount should be due after the grace period", func(t *testing.T) {
		reported := conversion.Reclaims([]autonodev1alpha1.CapacityReclaim{{Pool: "a", By: &scalar.Time{Malformed: "soon"}}, {Pool: "b"}})
		decided := division.Reclaims{"a": {{}}, "b": {{}}}
		NewWithT(t).Expect(division.Follow(reported, decided, by, time.Minute)).To(Equal(division.Follow(nil, decided, by, time.Minute)))
	})
	t.Run("When the operator records what isn't lent, it should read the same", func(t *testing.T) {
		retained := map[string]division.Retained{"a": {Amount: 3, Until: by}}
		NewWithT(t).Expect(conversion.Retained(&autonodev1alpha1.CapacityGrant{Retained: conversion.RecordedRetained(retained)})).To(Equal(retained))
	})
}
