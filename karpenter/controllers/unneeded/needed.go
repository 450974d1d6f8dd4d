// SPDX-License-Identifier: Apache-2.0

package unneeded

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	nodeutils "sigs.k8s.io/karpenter/pkg/utils/node"
)

// ByScheduler simulates Karpenter's scheduler for pending pods and for the pods of nodes that are being removed, and
// returns the NodeClaims that they would be placed on. While at least as many pods are pending as NodeClaims wait for
// their nodes, it treats all of these as needed: simulating a large burst is expensive. It treats
// them as needed while no NodePool is ready, too.
func ByScheduler(guest client.Client, cluster *state.Cluster, provisioner *provisioning.Provisioner, clk clock.Clock, recorder events.Recorder) Needed {
	return func(ctx context.Context, nodeClaims []*karpv1.NodeClaim) (sets.Set[string], error) {
		all := sets.New[string]()
		for _, nodeClaim := range nodeClaims {
			all.Insert(nodeClaim.Name)
		}
		pending, err := nodeutils.GetProvisionablePods(ctx, guest)
		if err != nil || len(pending) >= len(nodeClaims) || !cluster.Synced(ctx) {
			return all, err
		}
		results, err := disruption.SimulateScheduling(ctx, guest, cluster, provisioner, clk, recorder, nil)
		if errors.Is(err, provisioning.ErrNodePoolsNotFound) {
			// While no NodePool is ready, nothing can be simulated.
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		needed := sets.New[string]()
		for _, node := range results.ExistingNodes {
			if node.NodeClaim != nil && len(node.Pods) > 0 {
				needed.Insert(node.NodeClaim.Name)
			}
		}
		return needed, nil
	}
}
