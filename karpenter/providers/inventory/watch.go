// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// Watch observes the Machines in the management cluster's cache that owns accepts, and the Nodes in the guest's, on
// standby replicas too. Call it once, before the inventory is read.
func (i *Inventory) Watch(ctx context.Context, management, guest cache.Cache, owns func(client.Object) bool) error {
	machines, err := management.GetInformer(ctx, &clusterv1.Machine{})
	if err != nil {
		return fmt.Errorf("caching Machines: %w", err)
	}
	nodes, err := guest.GetInformer(ctx, &corev1.Node{})
	if err != nil {
		return fmt.Errorf("caching Nodes: %w", err)
	}
	registration, err := machines.AddEventHandler(handler(func(m *clusterv1.Machine, gone bool) {
		nodeClaim := types.UID(m.Labels[v1alpha1.NodeClaimUIDLabel])
		switch {
		case !owns(m):
		case gone:
			i.ForgetMachine(nodeClaim)
		default:
			i.ObserveMachine(nodeClaim, Machine{
				Origin: OriginOf(m), ContentHash: m.Annotations[v1alpha1.TemplateHashAnnotation], BootstrapHash: m.Annotations[v1alpha1.BootstrapHashAnnotation],
				NodeClassHash: m.Annotations[v1alpha1.NodeClassHashAnnotation], ProviderID: m.Spec.ProviderID,
			})
		}
	}))
	if err != nil {
		return fmt.Errorf("watching Machines: %w", err)
	}
	if i.Counted == nil {
		i.Counted, i.done = registration.HasSynced, registration.HasSyncedChecker().Done()
	}
	if _, err := nodes.AddEventHandler(handler(func(n *corev1.Node, gone bool) {
		switch seen, registered := nodeOf(n); {
		case gone:
			i.ForgetNode(n.Name)
		case registered:
			i.ObserveNode(n.Name, seen)
		}
	})); err != nil {
		return fmt.Errorf("watching Nodes: %w", err)
	}
	return nil
}

// handler calls f for each added, updated or deleted object.
func handler[T client.Object](f func(object T, gone bool)) toolscache.ResourceEventHandler {
	call := func(object any, gone bool) {
		if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
			object = unknown.Obj
		}
		if o, ok := object.(T); ok {
			f(o, gone)
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { call(object, false) },
		UpdateFunc: func(_, object any) { call(object, false) },
		DeleteFunc: func(object any) { call(object, true) },
	}
}
