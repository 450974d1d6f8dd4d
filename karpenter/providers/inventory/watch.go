// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"math"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// Watch counts the Machines in a cache that owns accepts, and follows them from then on, on replicas that don't lead too.
func Watch(ctx context.Context, management cache.Cache, owns func(client.Object) bool) (*Machines, error) {
	follower := &machine.Follower{}
	machines := New(follower.Complete)
	observe := func(nodeClaim types.UID, m *clusterv1.Machine) { machines.Observe(nodeClaim, FormOf(m)) }
	if err := follower.Start(ctx, management, owns, observe, machines.Forget); err != nil {
		return nil, err
	}
	machines.done = follower.Done()
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
