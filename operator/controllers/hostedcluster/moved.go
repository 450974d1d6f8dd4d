// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/scope"
)

// +kubebuilder:rbac:groups=autonode.io,resources=controlplanecomponents,resourceNames=karpenter,verbs=delete

// moved reports whether clusterctl has moved a HostedCluster to another management cluster, and deletes the copy here. The annotation
// replaces all others, so a pause by annotation has ended then, and the finalizer is still there for a moment.
func moved(hostedCluster *v1beta1.HostedCluster) bool {
	_, ok := hostedCluster.Annotations[clusterctlv1.DeleteForMoveAnnotation]
	return ok && !hostedCluster.DeletionTimestamp.IsZero()
}

// leave removes Karpenter from this management cluster and changes nothing else: nodes, Machines and the objects in the guest belong to the
// operator of the other one.
func (r *Reconciler) leave(ctx context.Context, s *scope.Scope) *outcome {
	if s.Component != nil {
		err := r.management.Delete(ctx, s.Component, client.Preconditions{UID: &s.Component.UID},
			client.PropagationPolicy(metav1.DeletePropagationBackground))
		if client.IgnoreNotFound(err) != nil {
			return &outcome{state: draining, blocked: true, errs: []error{fmt.Errorf("deleting the ControlPlaneComponent of a HostedCluster that "+
				"was moved: %w", err)}}
		}
	}
	return &outcome{state: off}
}
