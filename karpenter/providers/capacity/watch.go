// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"context"
	"fmt"

	toolscache "k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/capacity/conversion"
)

// Watch observes the Machines in the management cluster's cache that owns accepts. Call it once.
func (p *Provider) Watch(ctx context.Context, management cache.Cache, owns func(client.Object) bool) error {
	machines, err := management.GetInformer(ctx, &clusterv1.Machine{})
	if err != nil {
		return fmt.Errorf("caching Machines: %w", err)
	}
	observe := func(object any) {
		if m, ok := object.(*clusterv1.Machine); ok && owns(m) {
			taken, _ := conversion.MachineOf(m)
			p.ObserveMachine(v1alpha1.NodeClaimOf(m), taken)
		}
	}
	if _, err := machines.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    observe,
		UpdateFunc: func(_, object any) { observe(object) },
		DeleteFunc: func(object any) {
			if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = unknown.Obj
			}
			if m, ok := object.(*clusterv1.Machine); ok && owns(m) {
				p.ForgetMachine(v1alpha1.NodeClaimOf(m))
			}
		},
	}); err != nil {
		return fmt.Errorf("watching Machines: %w", err)
	}
	return nil
}
