// SPDX-License-Identifier: Apache-2.0

// Package departure wakes Karpenter core when an instance that it waits for is gone.
//
// Upstream gap: core asks its cloud provider every five seconds whether an instance is gone, and a provider that is told at once has no way to
// pass that on but a write of the object that core watches (docs/upstream/departed-machines.md).
package departure

import (
	"sync/atomic"

	"github.com/awslabs/operatorpkg/controller"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/karpenter/core/reconciler"
)

// Follow wraps a controller of Karpenter core's that waits for instances to go. wake begins a pass over the object of that name, which has no
// namespace, at once. A controller that isn't started begins with all objects anyway.
func Follow(core controller.Controller) (followed controller.Controller, wake func(name string)) {
	var enqueue atomic.Pointer[func(reconcile.Request)]
	followed = reconciler.Wrap(core, func(of reconciler.Registered) (reconcile.Reconciler, error) {
		registered, err := of.Enqueue()
		if err != nil {
			return nil, err
		}
		enqueue.Store(&registered)
		return of.Inner, nil
	})
	wake = func(name string) {
		if enqueue := enqueue.Load(); enqueue != nil {
			(*enqueue)(reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
		}
	}
	return followed, wake
}
