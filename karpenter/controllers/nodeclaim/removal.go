// SPDX-License-Identifier: Apache-2.0

package nodeclaim

import (
	"context"

	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// deleteForMoveAnnotation is set by clusterctl move on an object that it is about to delete, after creating its copy
// in another management cluster. From sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3.
const deleteForMoveAnnotation = "clusterctl.cluster.x-k8s.io/delete-for-move"

// removal deletes a NodeClaim whose Machine is being deleted by a user or another controller. Karpenter would take
// minutes to notice, and its pods would have no node until then.
type removal struct {
	Config
	repair *repair
}

func (r *removal) reconcile(ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine) (outcome, error) {
	if _, moved := m.Annotations[deleteForMoveAnnotation]; moved {
		// The Machine and its node continue in another management cluster. Ignore this object.
		r.repair.forget(ctx, nodeClaim)
		return outcome{done: true}, nil
	}
	if m.DeletionTimestamp == nil {
		return outcome{}, nil
	}
	if gone, err := r.giveUp(ctx, nodeClaim, "machine_deleted"); err != nil || !gone {
		return outcome{done: true}, err
	}
	log.FromContext(ctx).Info("Machine is being deleted in the management cluster")
	r.Recorder.Publish(warning(nodeClaim, MachineDeletedReason,
		"Machine %s is being deleted in the management cluster; the node goes with it", klog.KObj(m)))
	return outcome{done: true}, nil
}
