// SPDX-License-Identifier: Apache-2.0

package informer

import (
	"context"
	"fmt"

	toolscache "k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// WatchMachines is Watch for the Machines in the management cluster's cache that owns accepts.
func WatchMachines(ctx context.Context, management cache.Cache, owns func(client.Object) bool, observe, forget func(*clusterv1.Machine),
) (toolscache.ResourceEventHandlerRegistration, error) {
	return Watch(ctx, management, &clusterv1.Machine{}, func(m *clusterv1.Machine) {
		if owns(m) {
			observe(m)
		}
	}, func(m *clusterv1.Machine) {
		if owns(m) {
			forget(m)
		}
	})
}

// Watch calls observe with every added and every updated object of a kind in a cache, starting with those that it has already, and forget
// with every deleted one, as it was last seen. Neither may block or change the object.
func Watch[T client.Object](ctx context.Context, objects cache.Cache, kind T, observe, forget func(object T),
) (toolscache.ResourceEventHandlerRegistration, error) {
	informer, err := objects.GetInformer(ctx, kind)
	if err != nil {
		return nil, fmt.Errorf("caching %T: %w", kind, err)
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			if o, ok := object.(T); ok {
				observe(o)
			}
		},
		UpdateFunc: func(_, object any) {
			if o, ok := object.(T); ok {
				observe(o)
			}
		},
		DeleteFunc: func(object any) {
			if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = unknown.Obj
			}
			if o, ok := object.(T); ok {
				forget(o)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watching %T: %w", kind, err)
	}
	return registration, nil
}
