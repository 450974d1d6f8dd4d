// SPDX-License-Identifier: Apache-2.0

package nodeclaim

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/assets/infrastructure"
	"github.com/autonode-io/autonode/internal/message"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
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
	logger(ctx, key).Info("instance is being interrupted", "reason", found.condition.Reason, "message", found.condition.Message)
	i.Recorder.Publish(warning(nodeClaim, InterruptedReason,
		"the infrastructure takes Machine %s back (%s): %s; its node is drained and replaced%s",
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
	logger(ctx, key).Info("instance is gone", "reason", found.condition.Reason, "message", found.condition.Message)
	i.Recorder.Publish(warning(nodeClaim, InstanceTerminatedReason,
		"the instance of Machine %s (%s) doesn't run any more: %s; launching a replacement",
		klog.KObj(m), key.Description(), detail(found.condition)))
	return outcome{done: true}, nil
}

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

// nodeDeleted deletes a NodeClaim whose Node was deleted without a drain, past Karpenter's finalizer. The kubelet doesn't create
// its Node again, and Karpenter core counts on the NodeClaim's capacity for as long as the Machine exists: pods that it plans on it
// stay pending.
type nodeDeleted struct{ Config }

func (n *nodeDeleted) reconcile(ctx context.Context, nodeClaim *karpv1.NodeClaim, m *clusterv1.Machine) (outcome, error) {
	said := machine.Condition(m, clusterv1.MachineNodeHealthyCondition)
	name := m.Status.NodeRef.Name
	// Nothing keeps the conditions of a paused Machine up to date.
	if said.Status != metav1.ConditionFalse || said.Reason != clusterv1.MachineNodeDeletedReason || name == "" || paused(m) {
		return outcome{}, nil
	}
	// Cluster API's reading alone isn't enough: its cache of the guest may be behind.
	nodes := &corev1.NodeList{}
	if err := n.GuestLive.List(ctx, nodes, client.MatchingFields{metav1.ObjectNameField: name}); err != nil {
		return outcome{}, fmt.Errorf("reading Node %s, which Machine %s has lost: %w", name, m.Name, err)
	}
	if len(nodes.Items) > 0 && belongs(&nodes.Items[0], m) {
		return outcome{requeueAfter: requeueOnLag}, nil
	}
	if gone, err := n.giveUp(ctx, nodeClaim, "node_deleted"); err != nil || !gone {
		return outcome{done: true}, err
	}
	log.FromContext(ctx).Info("node was deleted without a drain", "Node", klog.KRef("", name))
	n.Recorder.Publish(warning(nodeClaim, NodeDeletedReason,
		"Node %s was deleted while Machine %s runs, and its kubelet doesn't create it again; deleting the Machine and launching a replacement",
		name, klog.KObj(m)))
	return outcome{done: true}, nil
}

// belongs reports whether a Node of the right name may be the Machine's. A Node without a provider ID may still get it.
func belongs(node *corev1.Node, m *clusterv1.Machine) bool {
	return node.Spec.ProviderID == "" || node.Spec.ProviderID == m.Spec.ProviderID
}
