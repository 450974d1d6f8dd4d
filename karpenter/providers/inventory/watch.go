// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/informer"
)

// Watch observes the Machines in the management cluster's cache that owns accepts, and the Nodes in the guest's, on
// standby replicas too. Call it once, before the inventory is read.
func (i *Inventory) Watch(ctx context.Context, management, guest cache.Cache, owns func(client.Object) bool) error {
	registration, err := informer.WatchMachines(ctx, management, owns, func(m *clusterv1.Machine) {
		i.ObserveMachine(types.UID(m.Labels[v1alpha1.NodeClaimUIDLabel]), Machine{
			Origin: OriginOf(m), ContentHash: m.Annotations[v1alpha1.TemplateHashAnnotation],
			BootstrapHash: m.Annotations[v1alpha1.BootstrapHashAnnotation],
			NodeClassHash: m.Annotations[v1alpha1.NodeClassHashAnnotation], ProviderID: m.Spec.ProviderID,
		})
	}, func(m *clusterv1.Machine) { i.ForgetMachine(types.UID(m.Labels[v1alpha1.NodeClaimUIDLabel])) })
	if err != nil {
		return err
	}
	if i.Counted == nil {
		i.Counted, i.done = registration.HasSynced, registration.HasSyncedChecker().Done()
	}
	_, err = informer.Watch(ctx, guest, &corev1.Node{}, func(n *corev1.Node) {
		if seen, registered := nodeOf(n); registered {
			i.ObserveNode(n.Name, seen)
		}
	}, func(n *corev1.Node) { i.ForgetNode(n.Name) })
	return err
}
