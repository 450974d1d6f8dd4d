// SPDX-License-Identifier: Apache-2.0

package conversion_test

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/autonode-io/autonode/api/scalar"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/capacity/conversion"
)

func TestReclaims(t *testing.T) {
	by := time.Unix(1_000_000, 0)
	reclaims := map[string][]capacity.Reclaim{"a": {{Keep: 4, By: by}, {Keep: 2, By: by.Add(time.Minute)}}, "b": {{Keep: 1, By: by}}}
	t.Run("When the operator records what is to be returned, it should read the same, and Karpenter too", func(t *testing.T) {
		g, l := NewWithT(t), lease()
		g.Expect(conversion.Reclaims(&autonodev1alpha1.CapacityGrant{Reclaims: conversion.RecordedReclaims(reclaims)})).To(Equal(reclaims))
		l.Spec.Reclaim = conversion.LeaseReclaims(reclaims, map[string][]string{"a": {"clusters/blue"}})
		g.Expect(conversion.Lease(l).Reclaims).To(Equal(reclaims))
		g.Expect(l.Spec.Reclaim[0].For).To(ConsistOf("clusters/blue"))
	})
	t.Run("When there is more than a list may have, it should leave out the rest", func(t *testing.T) {
		g, many := NewWithT(t), map[string][]capacity.Reclaim{}
		for i := range 300 {
			many[fmt.Sprintf("pool-%03d", i)] = []capacity.Reclaim{{By: by}}
		}
		g.Expect(conversion.RecordedReclaims(many)).To(HaveLen(256))
	})
	t.Run("When a deadline isn't a time, nothing should be returned for it", func(t *testing.T) {
		l := lease()
		l.Spec.Reclaim = []autonodev1alpha1.CapacityReclaim{{Pool: "a", By: scalar.Time{Malformed: "soon"}}}
		NewWithT(t).Expect(conversion.Lease(l).Reclaims).To(BeEmpty())
	})
	t.Run("When the operator records what isn't lent, it should read the same", func(t *testing.T) {
		retained := map[string]capacity.Retained{"a": {Amount: 3, Until: by}}
		NewWithT(t).Expect(conversion.Retained(&autonodev1alpha1.CapacityGrant{Retained: conversion.RecordedRetained(retained)})).To(Equal(retained))
	})
}
