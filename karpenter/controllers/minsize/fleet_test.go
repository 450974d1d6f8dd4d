// SPDX-License-Identifier: Apache-2.0

package minsize_test

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/internal/environment"
)

func TestEventInFleet(t *testing.T) {
	// read returns how many objects one reconcile reads in a fleet with five nodes a source.
	read := func(count, minimum int, request func(*environment.Fleet) reconcile.Request) int64 {
		fleet := environment.NewFleet(t, count, count/5)
		controller := sized(t, fleet, minimum)
		if _, err := controller.Reconcile(t.Context(), request(fleet)); err != nil {
			t.Fatal(err)
		}
		return fleet.Management.Read.Load() + fleet.Guest.Read.Load()
	}
	one := func(f *environment.Fleet) reconcile.Request { return request(f.Sources[0]) }
	t.Run("When a node changes in a larger fleet, it should read no more objects than its source has", func(t *testing.T) {
		small, large := read(10, 2, one), read(1_000, 2, one)
		if small != large {
			t.Errorf("%d objects among 10 nodes, %d among 1,000", small, large)
		}
	})
	t.Run("When its source has no minimum and no node is marked, it should read no node", func(t *testing.T) {
		// The one object is the node class.
		if got := read(1_000, 0, one); got != 1 {
			t.Errorf("%d objects", got)
		}
	})
	t.Run("When the templates change, it should read everything", func(t *testing.T) {
		all := func(*environment.Fleet) reconcile.Request { return reconcile.Request{} }
		if got := read(1_000, 0, all); got <= 3*1_000 {
			t.Errorf("%d objects", got)
		}
	})
}
