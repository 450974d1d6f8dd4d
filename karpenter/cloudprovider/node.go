// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

// deleteNode deletes the Node that a machine without a registered one has left behind. Such a machine joined before its
// infrastructure reported its provider ID: Cluster API finds no Node to delete, and Karpenter core deletes only those that it has
// registered. A cloud controller manager would delete it, where there is one. The kubelet has gone with the machine.
func (c *CloudProvider) deleteNode(ctx context.Context, nodeClaim *karpv1.NodeClaim) error {
	name, err := c.Machines.InstanceName(ctx, nodeClaim.Name)
	if err != nil {
		return err
	}
	node := &corev1.Node{}
	if err := c.Guest.Get(ctx, types.NamespacedName{Name: name}, node, client.UnsafeDisableDeepCopy); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("reading Node %s: %w", name, err)
	}
	if node.DeletionTimestamp != nil || node.Labels[karpv1.NodeRegisteredLabelKey] == "true" ||
		node.CreationTimestamp.Before(&nodeClaim.CreationTimestamp) {
		return nil
	}
	if _, err := c.Machines.ForProviderID(ctx, node.Spec.ProviderID); !errors.Is(err, machine.ErrNotFound) {
		return nil // another machine has registered under this name, or may have
	}
	if err := c.Guest.Delete(ctx, &corev1.Node{ObjectMeta: node.ObjectMeta}, client.Preconditions{UID: &node.UID}); err != nil {
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil
		}
		return fmt.Errorf("deleting Node %s, whose machine is gone: %w", node.Name, err)
	}
	log.FromContext(ctx).Info("deleted a node whose machine was deleted before it had a provider ID", "NodeClaim", klog.KObj(nodeClaim),
		"Node", klog.KObj(node))
	return nil
}
