// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"
)

// MachineDeletedReason is of the event for a NodeClaim whose Machine somebody else deletes. Its node is drained by Cluster API,
// and its pods get another node at once.
const MachineDeletedReason = "MachineDeleted"

// removal deletes a NodeClaim whose Machine is being deleted by somebody else. Waiting for Karpenter to notice would leave
// pods without a node for minutes.
type removal struct{ Config }

func (r *removal) reconcile(ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine) (bool, error) {
	if m.DeletionTimestamp == nil {
		return false, nil
	}
	if err := r.giveUp(ctx, nodeClaim, "machine_deleted"); err != nil {
		return false, err
	}
	log.FromContext(ctx).Info("machine is being deleted by somebody else")
	r.Recorder.Publish(events.Event{
		InvolvedObject: nodeClaim,
		Type:           corev1.EventTypeWarning,
		Reason:         MachineDeletedReason,
		Message:        "Machine " + m.Namespace + "/" + m.Name + " is being deleted in the management cluster; the node goes with it",
		DedupeValues:   []string{string(nodeClaim.UID)},
	})
	return true, nil
}
