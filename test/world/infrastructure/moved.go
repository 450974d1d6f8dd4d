// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// adopt recognizes a machine that runs already and has an object without a status: clusterctl moves objects that way to another management
// cluster. A cloud would find the instance by its provider ID. Here the Node records since when there is one; without a Node the machine is still
// on its way to join.
func (r *machineReconciler) adopt(ctx context.Context, i *instance) error {
	ctx, cancel := context.WithTimeout(ctx, guestTimeout)
	defer cancel()
	guest, err := r.guests.get(ctx, i.guest)
	if err != nil {
		return err
	}
	nodes, err := guest.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing the guest's nodes: %w", err)
	}
	i.Status.StartTime = metav1.NewMicroTime(i.now)
	for _, node := range nodes.Items {
		if node.Spec.ProviderID == i.Spec.ProviderID {
			joined := metav1.NewMicroTime(node.CreationTimestamp.Time)
			i.Status.NodeName, i.Status.StartTime, i.Status.JoinTime = node.Name, joined, joined
		}
	}
	return nil
}
