// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"context"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/capacity/conversion"
	"github.com/autonode-io/autonode/karpenter/providers/informer"
)

// Watch observes the Machines in the management cluster's cache that owns accepts. Call it once.
func (p *Provider) Watch(ctx context.Context, management cache.Cache, owns func(client.Object) bool) error {
	_, err := informer.WatchMachines(ctx, management, owns, func(m *clusterv1.Machine) {
		taken, _ := conversion.MachineOf(m)
		p.ObserveMachine(v1alpha1.NodeClaimOf(m), taken)
	}, func(m *clusterv1.Machine) { p.ForgetMachine(v1alpha1.NodeClaimOf(m)) })
	return err
}
