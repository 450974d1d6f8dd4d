// SPDX-License-Identifier: Apache-2.0

package nodeclaim

import (
	"context"
	"fmt"

	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/assets/infrastructure"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/message"
)

// maxSaid limits the infrastructure's message in an annotation, in bytes.
const maxSaid = 500

// instance deletes a NodeClaim whose instance the infrastructure is about to take back or has terminated. Karpenter then
// launches a replacement while it drains the node; of a node without an instance nothing is drained.
type instance struct{ Config }

func (i *instance) reconcile(ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine) (outcome, error) {
	nodeClass, err := i.nodeClass(ctx, nodeClaim)
	if err != nil {
		return outcome{}, err
	}
	found, ok := interpret(i.inputs(ctx, nodeClass, m), infrastructure.Interrupted, infrastructure.Terminated)
	switch {
	case !ok:
		return outcome{}, nil
	case found.means == infrastructure.Interrupted:
		return i.interrupted(ctx, nodeClaim, m, found)
	case nodeClaim.StatusConditions().Get(karpv1.ConditionTypeRegistered).IsTrue():
		return i.terminated(ctx, nodeClaim, m, found)
	}
	// Its node never joined: a failed launch, which counts against the offering.
	return outcome{}, nil
}

// interrupted makes a spot offering unavailable for a while: the infrastructure reclaims such machines.
func (i *instance) interrupted(ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine, found finding) (outcome, error) {
	key, notice := offeringOf(m), ""
	if key.CapacityType == karpv1.CapacityTypeSpot {
		// Mark it first: the replacement must not get the same offering.
		notice = offering.RetryNotice(i.Unavailable.Mark(key, InterruptedReason))
	}
	if gone, err := i.giveUp(ctx, nodeClaim, "interrupted"); err != nil || !gone {
		return outcome{done: true}, err
	}
	log.FromContext(ctx).Info("instance is being interrupted", "instanceType", key.InstanceType, "zone", key.Zone, "capacityType", key.CapacityType,
		"reason", found.condition.Reason, "message", found.condition.Message)
	i.Recorder.Publish(warning(nodeClaim, InterruptedReason, "the infrastructure takes Machine %s back (%s): %s; its node is drained and replaced%s",
		klog.KObj(m), key.Description(), detail(found.condition), notice))
	return outcome{done: true}, nil
}

// terminated marks the Machine first, so that Karpenter doesn't wait for pods of a node whose instance is gone.
func (i *instance) terminated(ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine, found finding) (outcome, error) {
	if !machine.InstanceGone(m) {
		said := message.Cut(detail(found.condition), maxSaid)
		if err := i.Machines.Annotate(ctx, m, map[string]string{v1alpha1.InstanceGoneAnnotation: said}); err != nil {
			return outcome{done: true}, fmt.Errorf("marking Machine %s, whose instance is gone: %w", m.Name, err)
		}
	}
	if gone, err := i.giveUp(ctx, nodeClaim, "instance_terminated"); err != nil || !gone {
		return outcome{done: true}, err
	}
	key := offeringOf(m)
	log.FromContext(ctx).Info("instance is gone", "instanceType", key.InstanceType, "zone", key.Zone, "capacityType", key.CapacityType,
		"reason", found.condition.Reason, "message", found.condition.Message)
	i.Recorder.Publish(warning(nodeClaim, InstanceTerminatedReason, "the instance of Machine %s (%s) doesn't run any more: %s; launching a replacement",
		klog.KObj(m), key.Description(), detail(found.condition)))
	return outcome{done: true}, nil
}
