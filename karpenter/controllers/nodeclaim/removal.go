// SPDX-License-Identifier: Apache-2.0

package nodeclaim

import (
	"context"

	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// deleteForMoveAnnotation is set by clusterctl move on an object that it is about to delete, because it has made the same in
// another management cluster. From sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3.
const deleteForMoveAnnotation = "clusterctl.cluster.x-k8s.io/delete-for-move"

// removal deletes a NodeClaim whose Machine is being deleted by somebody else. Waiting for Karpenter to notice would leave
// pods without a node for minutes.
type removal struct {
	Config
	repair *repair
}

func (r *removal) reconcile(ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine) (outcome, error) {
	if _, moved := m.Annotations[deleteForMoveAnnotation]; moved {
		// It goes on in another management cluster, and so does its node. Nothing that this object says counts any more.
		r.repair.forget(ctx, nodeClaim)
		return outcome{done: true}, nil
	}
	if m.DeletionTimestamp == nil {
		return outcome{}, nil
	}
	if gone, err := r.giveUp(ctx, nodeClaim, "machine_deleted"); err != nil || !gone {
		return outcome{done: true}, err
	}
	log.FromContext(ctx).Info("machine is being deleted by somebody else")
	r.Recorder.Publish(warning(nodeClaim, MachineDeletedReason,
		"Machine %s is being deleted in the management cluster; the node goes with it", klog.KObj(m)))
	return outcome{done: true}, nil
}
