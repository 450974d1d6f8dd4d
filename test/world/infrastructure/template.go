// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"context"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// templateReconciler reports a template's capacity, for scaling from zero.
type templateReconciler struct {
	management client.Client
}

func (r *templateReconciler) setup(manager ctrl.Manager, options ctrlcontroller.Options) error {
	return builder.ControllerManagedBy(manager).
		Named("kwokmachinetemplate").
		For(&infrav1.KwokMachineTemplate{}).
		WithOptions(options).
		Complete(reconcile.AsReconciler(r.management, r))
}

// Reconcile brings one template's status up to date.
func (r *templateReconciler) Reconcile(ctx context.Context, template *infrav1.KwokMachineTemplate) (reconcile.Result, error) {
	if !template.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil
	}
	before := template.DeepCopy()
	spec := template.Spec.Template.Spec
	template.Status.Capacity = spec.Capacity
	template.Status.NodeInfo = infrav1.NodeInfo{Architecture: spec.Architecture, OperatingSystem: spec.OperatingSystem}
	return retryConflict(writeStatus(ctx, r.management, before, template))
}
