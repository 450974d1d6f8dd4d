// SPDX-License-Identifier: Apache-2.0

package vacancy

import (
	"context"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/informer"
)

// Watch observes the Machines in the management cluster's cache that owns accepts. Call it once.
func (k *Keeper) Watch(ctx context.Context, management cache.Cache, owns func(client.Object) bool) error {
	_, err := informer.WatchMachines(ctx, management, owns, func(m *clusterv1.Machine, added bool) {
		// An updated Machine may have left the vacancy.
		if replaces := m.Annotations[v1alpha1.ReplacesAnnotation]; added && replaces != "" && m.DeletionTimestamp == nil {
			k.ObserveMachine(v1alpha1.NodeClaimOf(m), replaces)
		}
	}, func(m *clusterv1.Machine) { k.Release(v1alpha1.NodeClaimOf(m)) })
	return err
}
