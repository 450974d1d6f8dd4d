// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/guest/consent"
	"github.com/autonode-io/autonode/operator/scope"
)

// recordConsent records on the ControlPlaneComponent whether the control plane consents. A component without a record
// is from before consent was required, and continues. Once its control plane has consented, it can withdraw its
// consent.
func (r *Reconciler) recordConsent(ctx context.Context, s *scope.Scope) error {
	if s.Component == nil || s.Component.Annotations[v1beta1.ConsentRecordAnnotation] == v1beta1.ConsentNamed {
		return nil
	}
	named, err := consent.Named(ctx, r.management, s.HostedCluster, s.ClusterKey())
	if err != nil {
		return err
	}
	record := v1beta1.ConsentAssumed
	if named {
		record = v1beta1.ConsentNamed
	}
	if s.Component.Annotations[v1beta1.ConsentRecordAnnotation] == record {
		return nil
	}
	before := s.Component.DeepCopy()
	metav1.SetMetaDataAnnotation(&s.Component.ObjectMeta, v1beta1.ConsentRecordAnnotation, record)
	if err := r.management.Patch(ctx, s.Component, client.MergeFrom(before), client.FieldOwner(apply.FieldOwner)); err != nil {
		return fmt.Errorf("recording the consent of %s: %w", s.ClusterKey(), err)
	}
	return nil
}

// lastCount is the number of nodes that the operator last counted in a control plane that still exists. It comes from the status, which authors
// of HostedClusters can't write; the control plane isn't read.
func lastCount(s *scope.Scope) int32 {
	status := s.HostedCluster.Status.AutoNode
	if s.Cluster == nil || status == nil {
		return 0
	}
	return max(ptr.Deref(status.NodeClaimCount, 0), ptr.Deref(status.NodeCount, 0))
}

// unproven keeps the finalizer of a HostedCluster whose ControlPlaneComponent is gone, for example with a pruned installation: without it and
// without an annotation nothing proves that the control plane is this HostedCluster's, and without the finalizer the nodes would keep running
// unnoticed.
func unproven(s *scope.Scope, nodes int32) *outcome {
	return &outcome{
		state: draining, blocked: true, reason: v1beta1.ConsentMissingReason,
		message: fmt.Sprintf("ControlPlaneComponent %s/%s is missing, and nodes remain (last count: %d): annotate Cluster %s with %s=%s to drain them, or remove finalizer %s to keep them running",
			s.ControlPlaneNamespace, s.Names().Karpenter, nodes, s.ClusterKey(),
			v1beta1.ConsentAnnotation, client.ObjectKeyFromObject(s.HostedCluster), v1beta1.HostedClusterFinalizer),
	}
}
