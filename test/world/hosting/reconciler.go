// SPDX-License-Identifier: Apache-2.0

package hosting

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/test/world/controlplane"
	controlplanev1 "github.com/autonode-io/autonode/test/world/infrastructure/api/controlplane/v1beta1"
)

// Reasons of the condition Available of a HostedControlPlane.
const (
	// reasonAvailable: the API server answers.
	reasonAvailable = "Available"
	// reasonUpgrading: the API server is being replaced by one of another version. It takes some seconds.
	reasonUpgrading = "Upgrading"
	// reasonUnknownVersion: the API server runs on as it was; ask for a version that the message names.
	reasonUnknownVersion = "UnknownVersion"
	// reasonUpgradeFailed: see the message, and the log of the API server in the world's folder.
	reasonUpgradeFailed = "UpgradeFailed"
)

// concurrency is the number of guests that are upgraded at once.
const concurrency = 4

// reconciler makes each guest's API server run the version that its HostedControlPlane requests.
type reconciler struct {
	management client.Client
	guests     map[string]*controlplane.Cluster
	// namespace of a guest's HostedControlPlane.
	namespace func(guest string) string
}

var _ reconcile.ObjectReconciler[*controlplanev1.HostedControlPlane] = (*reconciler)(nil)

func (r *reconciler) setUp(manager ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(manager).
		Named("hostedcontrolplane").
		For(&controlplanev1.HostedControlPlane{}).
		WithOptions(ctrlcontroller.Options{MaxConcurrentReconciles: concurrency}).
		Complete(reconcile.AsReconciler(manager.GetClient(), r))
	if err != nil {
		return fmt.Errorf("building the hosting platform: %w", err)
	}
	return nil
}

// Reconcile implements reconcile.ObjectReconciler.
func (r *reconciler) Reconcile(ctx context.Context, controlPlane *controlplanev1.HostedControlPlane) (ctrl.Result, error) {
	guest, ok := r.guests[controlPlane.Name]
	if !ok || controlPlane.Namespace != r.namespace(guest.Name) || !controlPlane.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	if controlPlane.Spec.Version == guest.Version() {
		return ctrl.Result{}, r.report(ctx, controlPlane, guest, metav1.ConditionTrue, reasonAvailable, "")
	}
	if err := guest.CanRun(controlPlane.Spec.Version); err != nil {
		return ctrl.Result{}, r.report(ctx, controlPlane, guest, metav1.ConditionTrue, reasonUnknownVersion, err.Error())
	}
	if err := r.report(ctx, controlPlane, guest, metav1.ConditionFalse, reasonUpgrading,
		fmt.Sprintf("replacing %s by %s", guest.Version(), controlPlane.Spec.Version)); err != nil {
		return ctrl.Result{}, err
	}
	upgradeCtx, cancel := context.WithTimeout(ctx, upgradeTimeout)
	defer cancel()
	if err := guest.Upgrade(upgradeCtx, controlPlane.Spec.Version); err != nil {
		return ctrl.Result{}, errors.Join(err,
			r.report(ctx, controlPlane, guest, metav1.ConditionFalse, reasonUpgradeFailed, err.Error()))
	}
	return ctrl.Result{}, r.report(ctx, controlPlane, guest, metav1.ConditionTrue, reasonAvailable, "")
}

// report writes the whole status, if it differs.
func (r *reconciler) report(ctx context.Context, controlPlane *controlplanev1.HostedControlPlane, guest *controlplane.Cluster,
	available metav1.ConditionStatus, reason, message string,
) error {
	before := controlPlane.DeepCopy()
	status := &controlPlane.Status
	status.Initialization.ControlPlaneInitialized = new(true)
	status.ExternalManagedControlPlane = new(true)
	status.Version = guest.Version()
	status.Versions = []clusterv1.StatusVersion{{Version: guest.Version()}}
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: controlplanev1.ConditionAvailable, Status: available, Reason: reason, Message: message,
		ObservedGeneration: controlPlane.Generation,
	})
	if equality.Semantic.DeepEqual(before.Status, controlPlane.Status) {
		return nil
	}
	if err := r.management.Status().Patch(ctx, controlPlane, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("reporting HostedControlPlane %s: %w", client.ObjectKeyFromObject(controlPlane), err)
	}
	return nil
}

func condition(controlPlane *controlplanev1.HostedControlPlane) metav1.Condition {
	if c := meta.FindStatusCondition(controlPlane.Status.Conditions, controlplanev1.ConditionAvailable); c != nil {
		return *c
	}
	return metav1.Condition{}
}
