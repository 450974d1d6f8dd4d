// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"fmt"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/scope"
)

// lastCount is the number of nodes that the operator last counted in a control plane that still exists. It comes from the status, which
// authors of HostedClusters can't write; the control plane isn't read.
func lastCount(s *scope.Scope) int32 {
	status := s.HostedCluster.Status.AutoNode
	if s.Cluster == nil || status == nil {
		return 0
	}
	return max(ptr.Deref(status.NodeClaimCount, 0), ptr.Deref(status.NodeCount, 0))
}

// unproven keeps the finalizer of a HostedCluster whose ControlPlaneComponent is gone, for example with a pruned installation: without it
// and without an annotation nothing proves that the control plane is this HostedCluster's, and without the finalizer the nodes would keep
// running unnoticed.
func unproven(s *scope.Scope, nodes int32) *outcome {
	return &outcome{
		state: draining, blocked: true, reason: v1beta1.ConsentMissingReason,
		message: fmt.Sprintf("ControlPlaneComponent %s/%s is missing, and nodes remain (last count: %d): annotate Cluster %s with %s=%s to "+
			"drain them, or remove finalizer %s to keep them running",
			s.ControlPlaneNamespace, s.Names().Karpenter, nodes, s.ClusterKey(),
			v1beta1.ConsentAnnotation, client.ObjectKeyFromObject(s.HostedCluster), v1beta1.HostedClusterFinalizer),
	}
}
