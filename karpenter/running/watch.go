// SPDX-License-Identifier: Apache-2.0

package running

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/offering"
)

// Watch counts the Machines in a cache that owns accepts, and follows them from then on, on replicas that don't lead too.
func Watch(ctx context.Context, management cache.Cache, owns func(client.Object) bool) (*Machines, error) {
	informer, err := management.GetInformer(ctx, &clusterv1.Machine{})
	if err != nil {
		return nil, fmt.Errorf("caching Machines: %w", err)
	}
	var registration atomic.Pointer[toolscache.ResourceEventHandlerRegistration]
	machines := New(func() bool {
		r := registration.Load()
		return r != nil && (*r).HasSynced()
	})
	observe := func(object any) {
		if m, ok := object.(*clusterv1.Machine); ok && owns(m) {
			machines.Observe(nodeClaimOf(m), FormOf(m))
		}
	}
	handle, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    observe,
		UpdateFunc: func(_, object any) { observe(object) },
		DeleteFunc: func(object any) {
			if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = unknown.Obj
			}
			if m, ok := object.(*clusterv1.Machine); ok && owns(m) {
				machines.Forget(nodeClaimOf(m))
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watching Machines: %w", err)
	}
	registration.Store(&handle)
	return machines, nil
}

// FormOf is what a Machine says that it was made as.
func FormOf(m *clusterv1.Machine) Form {
	price, err := strconv.ParseFloat(m.Annotations[v1alpha1.PriceAnnotation], 64)
	// Written so that NaN, which isn't equal to itself, fails too.
	if err != nil || !(price >= 0 && price < math.MaxFloat64) {
		price = 0
	}
	return Form{
		Source: m.Annotations[v1alpha1.ShapeSourceAnnotation],
		Key: offering.Key{
			InstanceType: m.Labels[corev1.LabelInstanceTypeStable],
			Zone:         m.Labels[corev1.LabelTopologyZone],
			CapacityType: m.Labels[karpv1.CapacityTypeLabelKey],
		},
		Price: price,
	}
}

func nodeClaimOf(m *clusterv1.Machine) types.UID {
	return types.UID(m.Labels[v1alpha1.NodeClaimUIDLabel])
}
