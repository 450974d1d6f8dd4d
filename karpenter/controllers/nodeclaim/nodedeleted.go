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

	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

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
