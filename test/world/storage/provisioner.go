// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Annotations that scheduler, volume binder and provisioners agree upon: k8s.io/component-helpers/storage/volume.
const (
	selectedNodeAnnotation  = "volume.kubernetes.io/selected-node"
	provisionerAnnotation   = "volume.kubernetes.io/storage-provisioner"
	provisionedByAnnotation = "pv.kubernetes.io/provisioned-by"
)

// provisioner makes volumes, as the sidecar external-provisioner has a driver make them.
type provisioner struct{ guest client.Client }

func (p *provisioner) setup(manager ctrl.Manager, options ctrlcontroller.Options) error {
	return ctrl.NewControllerManagedBy(manager).Named("csi-provisioner").For(&corev1.PersistentVolumeClaim{}).
		// The driver may register on a node after the scheduler has selected it.
		Watches(&storagev1.CSINode{}, handler.EnqueueRequestsFromMapFunc(p.waiting)).
		WithOptions(options).Complete(reconcile.AsReconciler(p.guest, p))
}

// Reconcile makes the volume of a claim for which a node has been selected.
func (p *provisioner) Reconcile(ctx context.Context, claim *corev1.PersistentVolumeClaim) (reconcile.Result, error) {
	selected := claim.Annotations[selectedNodeAnnotation]
	if claim.DeletionTimestamp != nil || claim.Spec.VolumeName != "" || claim.Annotations[provisionerAnnotation] != DriverName || selected == "" {
		return reconcile.Result{}, nil
	}
	node, csiNode := &corev1.Node{}, &storagev1.CSINode{}
	if err := p.guest.Get(ctx, types.NamespacedName{Name: selected}, node); err != nil {
		if apierrors.IsNotFound(err) {
			return reconcile.Result{}, p.reschedule(ctx, claim)
		}
		return reconcile.Result{}, fmt.Errorf("reading Node %s: %w", selected, err)
	}
	if err := p.guest.Get(ctx, types.NamespacedName{Name: selected}, csiNode); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(fmt.Errorf("reading CSINode %s: %w", selected, err))
	}
	zone := node.Labels[TopologyKey]
	if !registered(csiNode) || zone == "" {
		return reconcile.Result{}, nil // its CSINode brings us back
	}
	if err := p.guest.Create(ctx, volumeOf(claim, zone)); err != nil && !apierrors.IsAlreadyExists(err) {
		return reconcile.Result{}, fmt.Errorf("creating the volume of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return reconcile.Result{}, nil
}

// reschedule has the scheduler select another node.
func (p *provisioner) reschedule(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	before := claim.DeepCopy()
	delete(claim.Annotations, selectedNodeAnnotation)
	if err := p.guest.Patch(ctx, claim, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("asking for another node for claim %s/%s: %w", claim.Namespace, claim.Name, err))
	}
	return nil
}

// waiting maps a CSINode to the claims that wait for a volume there.
func (p *provisioner) waiting(ctx context.Context, csiNode client.Object) []reconcile.Request {
	claims := &corev1.PersistentVolumeClaimList{}
	if err := p.guest.List(ctx, claims); err != nil {
		return nil // from a cache that has synced: it can't fail but by its end
	}
	var requests []reconcile.Request
	for _, claim := range claims.Items {
		if claim.Spec.VolumeName == "" && claim.Annotations[selectedNodeAnnotation] == csiNode.GetName() {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&claim)})
		}
	}
	return requests
}

// volumeOf is bound to its claim from the start, and its name makes it one.
func volumeOf(claim *corev1.PersistentVolumeClaim, zone string) *corev1.PersistentVolume {
	name := "pvc-" + string(claim.UID)
	class := ""
	if claim.Spec.StorageClassName != nil {
		class = *claim.Spec.StorageClassName
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{provisionedByAnnotation: DriverName}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      claim.Spec.Resources.Requests,
			AccessModes:                   claim.Spec.AccessModes,
			VolumeMode:                    claim.Spec.VolumeMode,
			StorageClassName:              class,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion,
			},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: DriverName, VolumeHandle: name}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: TopologyKey, Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}},
			}}}},
		},
	}
}

// deleter deletes the volumes of claims that have gone.
type deleter struct{ guest client.Client }

func (d *deleter) setup(manager ctrl.Manager, options ctrlcontroller.Options) error {
	return ctrl.NewControllerManagedBy(manager).Named("csi-deleter").For(&corev1.PersistentVolume{}).
		WithOptions(options).Complete(reconcile.AsReconciler(d.guest, d))
}

// Reconcile deletes a volume that the binder has released.
func (d *deleter) Reconcile(ctx context.Context, volume *corev1.PersistentVolume) (reconcile.Result, error) {
	if volume.DeletionTimestamp != nil || volume.Annotations[provisionedByAnnotation] != DriverName || volume.Status.Phase != corev1.VolumeReleased {
		return reconcile.Result{}, nil
	}
	if err := d.guest.Delete(ctx, volume, client.Preconditions{UID: &volume.UID}); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(fmt.Errorf("deleting volume %s: %w", volume.Name, err))
	}
	return reconcile.Result{}, nil
}
