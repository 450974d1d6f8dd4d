// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"context"
	"fmt"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// Watch returns a ledger that counts the Machines in a cache that owns accepts. The ledger follows them from then on, on replicas
// that don't lead too.
func Watch(ctx context.Context, management cache.Cache, owns func(client.Object) bool, clk clock.PassiveClock) (*Ledger, error) {
	informer, err := management.GetInformer(ctx, &clusterv1.Machine{})
	if err != nil {
		return nil, fmt.Errorf("caching Machines: %w", err)
	}
	var registration atomic.Pointer[toolscache.ResourceEventHandlerRegistration]
	ledger := NewLedger(clk, func() bool {
		r := registration.Load()
		return r != nil && (*r).HasSynced()
	})
	observe := func(object any) {
		m, ok := object.(*clusterv1.Machine)
		if !ok || !owns(m) {
			return
		}
		ledger.Observe(nodeClaimOf(m), m.Annotations[v1alpha1.ShapeSourceAnnotation])
	}
	handle, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    observe,
		UpdateFunc: func(_, object any) { observe(object) },
		DeleteFunc: func(object any) {
			if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = unknown.Obj
			}
			if m, ok := object.(*clusterv1.Machine); ok && owns(m) {
				ledger.Forget(nodeClaimOf(m))
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watching Machines: %w", err)
	}
	registration.Store(&handle)
	return ledger, nil
}

func nodeClaimOf(m *clusterv1.Machine) types.UID {
	return types.UID(m.Labels[v1alpha1.NodeClaimUIDLabel])
}
