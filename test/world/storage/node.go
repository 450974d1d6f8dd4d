// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// nodePlugin is the driver's plugin on every node, and what the kubelet does when a plugin registers with it. A plugin is a pod of a
// DaemonSet, so it registers when the Node is ready.
type nodePlugin struct{ guest client.Client }

func (p *nodePlugin) setup(manager ctrl.Manager, options ctrlcontroller.Options) error {
	return ctrl.NewControllerManagedBy(manager).Named("csi-node").For(&corev1.Node{}).Owns(&storagev1.CSINode{}, builder.MatchEveryOwner).
		WithOptions(options).Complete(reconcile.AsReconciler(p.guest, p))
}

// Reconcile registers the driver on a Node whose zone is known.
func (p *nodePlugin) Reconcile(ctx context.Context, node *corev1.Node) (reconcile.Result, error) {
	zone := node.Labels[corev1.LabelTopologyZone]
	if node.DeletionTimestamp != nil || zone == "" || !isReady(node) {
		return reconcile.Result{}, nil
	}
	// As the kubelet does it: first the label, so that whoever finds the driver in the CSINode finds the label too.
	if node.Labels[TopologyKey] != zone {
		before := node.DeepCopy()
		node.Labels[TopologyKey] = zone
		if err := p.guest.Patch(ctx, node, client.MergeFrom(before)); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(fmt.Errorf("labelling Node %s: %w", node.Name, err))
		}
	}
	return reconcile.Result{}, p.register(ctx, node)
}

func (p *nodePlugin) register(ctx context.Context, node *corev1.Node) error {
	volumes := int32(MaxVolumes)
	driver := storagev1.CSINodeDriver{
		Name: DriverName, NodeID: node.Spec.ProviderID, TopologyKeys: []string{TopologyKey}, Allocatable: &storagev1.VolumeNodeResources{Count: &volumes},
	}
	csiNode := &storagev1.CSINode{}
	err := p.guest.Get(ctx, client.ObjectKeyFromObject(node), csiNode)
	switch {
	case apierrors.IsNotFound(err):
		csiNode.Name = node.Name
		csiNode.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
		csiNode.Spec.Drivers = []storagev1.CSINodeDriver{driver}
		if err := p.guest.Create(ctx, csiNode); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating CSINode %s: %w", node.Name, err)
		}
		return nil
	case err != nil:
		return fmt.Errorf("reading CSINode %s: %w", node.Name, err)
	case registered(csiNode):
		return nil
	}
	before := csiNode.DeepCopy()
	csiNode.Spec.Drivers = append(csiNode.Spec.Drivers, driver)
	if err := p.guest.Patch(ctx, csiNode, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("registering with CSINode %s: %w", node.Name, err))
	}
	return nil
}

func registered(csiNode *storagev1.CSINode) bool {
	return slices.ContainsFunc(csiNode.Spec.Drivers, func(driver storagev1.CSINodeDriver) bool { return driver.Name == DriverName })
}

func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
		return condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
	})
}
