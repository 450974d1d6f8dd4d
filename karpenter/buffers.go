// SPDX-License-Identifier: Apache-2.0

package karpenter

import (
	"context"
	"fmt"
	"sync"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/operator/options"
)

// moveBuffers returns what has Karpenter remember the capacity buffers of a node whose provider ID changes. It counts them by
// provider ID in each scheduling pass, and for as long as there is no other pass, a node that it can't find there is empty to it.
func moveBuffers(cluster *state.Cluster) func(from, to string) {
	var mu sync.Mutex
	return func(from, to string) {
		mu.Lock()
		defer mu.Unlock()
		moving := cluster.BufferPodCount(from)
		if moving == 0 {
			return
		}
		counts := map[string]int{to: moving}
		for node := range cluster.Nodes() {
			id := node.ProviderID()
			if count := cluster.BufferPodCount(id); count > 0 {
				counts[id] = count
			}
		}
		cluster.UpdateBufferPodCounts(counts)
	}
}

// lastBuffer has Karpenter forget what nodes hold when the last capacity buffer is deleted. Karpenter counts in a scheduling pass, and
// nothing causes one when a buffer goes: in a quiet cluster its nodes would never be empty.
type lastBuffer struct {
	guest   client.Client
	cluster *state.Cluster
}

// Register implements operatorpkg's controller. Without the feature gate there is nothing to watch, nor the right to.
func (l *lastBuffer) Register(ctx context.Context, m manager.Manager) error {
	if !options.FromContext(ctx).FeatureGates.CapacityBuffer {
		return nil
	}
	return ctrl.NewControllerManagedBy(m).Named("capacitybuffer.last").For(&autoscalingv1beta1.CapacityBuffer{}).Complete(l)
}

// Reconcile implements reconcile.Reconciler.
func (l *lastBuffer) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	buffers := &autoscalingv1beta1.CapacityBufferList{}
	if err := l.guest.List(ctx, buffers); err != nil {
		return reconcile.Result{}, fmt.Errorf("listing capacity buffers: %w", err)
	}
	if len(buffers.Items) == 0 {
		l.cluster.UpdateBufferPodCounts(map[string]int{})
	}
	return reconcile.Result{}, nil
}
