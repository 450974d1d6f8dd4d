// SPDX-License-Identifier: Apache-2.0

package unneeded

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	nodeutils "sigs.k8s.io/karpenter/pkg/utils/node"
	podutils "sigs.k8s.io/karpenter/pkg/utils/pod"
)

// ByScheduler simulates Karpenter's scheduler for pending pods and for the pods of nodes that are being removed, and
// returns the NodeClaims that they would be placed on, and those whose nodes run pods already. Pods of DaemonSets don't count. While at
// least as many pods are pending as NodeClaims wait for their nodes, it treats all of these as needed: simulating a large burst is
// expensive. It treats them as needed while no NodePool is ready, too.
func ByScheduler(guest client.Client, cluster *state.Cluster, provisioner *provisioning.Provisioner, clk clock.Clock,
	recorder events.Recorder,
) Needed {
	return func(ctx context.Context, nodeClaims []*karpv1.NodeClaim) (sets.Set[string], error) {
		all := sets.New[string]()
		for _, nodeClaim := range nodeClaims {
			all.Insert(nodeClaim.Name)
		}
		pending, err := nodeutils.GetProvisionablePods(ctx, guest)
		if err != nil || len(pending) >= len(nodeClaims) || !cluster.Synced(ctx) {
			return all, err
		}
		results, err := disruption.SimulateScheduling(ctx, guest, cluster, provisioner, clk, recorder, nil, disruption.SimulationOptions{})
		if errors.Is(err, provisioning.ErrNodePoolsNotFound) {
			// While no NodePool is ready, nothing can be simulated.
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		needed, err := occupied(ctx, guest, nodeClaims, clk, recorder)
		if err != nil {
			return nil, err
		}
		for _, node := range results.ExistingNodes {
			if node.NodeClaim != nil && len(node.Pods) > 0 {
				needed.Insert(node.NodeClaim.Name)
			}
		}
		return needed, nil
	}
}

// occupied returns the NodeClaims whose nodes run a pod that Karpenter core would move elsewhere, or may not disrupt.
func occupied(ctx context.Context, guest client.Client, nodeClaims []*karpv1.NodeClaim, clk clock.Clock, recorder events.Recorder,
) (sets.Set[string], error) {
	names := sets.New[string]()
	for _, nodeClaim := range nodeClaims {
		if nodeClaim.Status.NodeName == "" {
			continue
		}
		pods := &corev1.PodList{}
		if err := guest.List(ctx, pods, client.MatchingFields{"spec.nodeName": nodeClaim.Status.NodeName}); err != nil {
			return nil, fmt.Errorf("listing pods of node %s: %w", nodeClaim.Status.NodeName, err)
		}
		if slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool {
			return podutils.IsReschedulable(&pod) || !podutils.IsDisruptable(&pod, clk, recorder)
		}) {
			names.Insert(nodeClaim.Name)
		}
	}
	return names, nil
}
