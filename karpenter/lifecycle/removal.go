// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"context"

	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// removal deletes a NodeClaim whose Machine is being deleted by somebody else. Waiting for Karpenter to notice would leave
// pods without a node for minutes.
type removal struct{ Config }

func (r *removal) reconcile(ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine) (outcome, error) {
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
