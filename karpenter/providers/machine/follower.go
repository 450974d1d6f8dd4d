// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// Follower follows the Machines in a cache, on replicas that don't lead too. The zero value follows none yet.
type Follower struct {
	registration atomic.Pointer[toolscache.ResourceEventHandlerRegistration]
}

// Complete says whether every Machine that there was at the start has been told.
func (f *Follower) Complete() bool {
	r := f.registration.Load()
	return r != nil && (*r).HasSynced()
}

// Done is closed once Complete says yes. It may be called after Start.
func (f *Follower) Done() <-chan struct{} { return (*f.registration.Load()).HasSyncedChecker().Done() }

// Start has seen called with each Machine that owns accepts, by its NodeClaim, when it comes and whenever it changes, and gone when it has
// gone. It may be called once.
func (f *Follower) Start(
	ctx context.Context, management cache.Cache, owns func(client.Object) bool, seen func(types.UID, *clusterv1.Machine), gone func(types.UID),
) error {
	informer, err := management.GetInformer(ctx, &clusterv1.Machine{})
	if err != nil {
		return fmt.Errorf("caching Machines: %w", err)
	}
	ours := func(object any) (*clusterv1.Machine, types.UID, bool) {
		m, ok := object.(*clusterv1.Machine)
		if !ok || !owns(m) {
			return nil, "", false
		}
		return m, types.UID(m.Labels[v1alpha1.NodeClaimUIDLabel]), true
	}
	observe := func(object any) {
		if m, nodeClaim, ok := ours(object); ok {
			seen(nodeClaim, m)
		}
	}
	handle, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    observe,
		UpdateFunc: func(_, object any) { observe(object) },
		DeleteFunc: func(object any) {
			if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = unknown.Obj
			}
			if _, nodeClaim, ok := ours(object); ok {
				gone(nodeClaim)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watching Machines: %w", err)
	}
	f.registration.Store(&handle)
	return nil
}
