// SPDX-License-Identifier: Apache-2.0

package vacancy

import (
	"context"
	"fmt"

	toolscache "k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// Watch observes the Machines in the management cluster's cache that owns accepts. Call it once.
func (k *Keeper) Watch(ctx context.Context, management cache.Cache, owns func(client.Object) bool) error {
	machines, err := management.GetInformer(ctx, &clusterv1.Machine{})
	if err != nil {
		return fmt.Errorf("caching Machines: %w", err)
	}
	if _, err := machines.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			if m, ok := object.(*clusterv1.Machine); ok && m.Annotations[v1alpha1.ReplacesAnnotation] != "" && m.DeletionTimestamp == nil && owns(m) {
				k.ObserveMachine(v1alpha1.NodeClaimOf(m), m.Annotations[v1alpha1.ReplacesAnnotation])
			}
		},
		DeleteFunc: func(object any) {
			if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = unknown.Obj
			}
			if m, ok := object.(*clusterv1.Machine); ok && owns(m) {
				k.Release(v1alpha1.NodeClaimOf(m))
			}
		},
	}); err != nil {
		return fmt.Errorf("watching Machines: %w", err)
	}
	return nil
}
