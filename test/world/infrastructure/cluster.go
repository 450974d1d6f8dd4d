// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/annotations"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// clusterReconciler reports a KwokCluster as provisioned: this cloud has nothing to set up but its zones.
type clusterReconciler struct {
	management client.Client
}

func (r *clusterReconciler) setup(manager ctrl.Manager, options ctrlcontroller.Options) error {
	ofCluster := util.ClusterToInfrastructureMapFunc(context.Background(), infrav1.GroupVersion.WithKind("KwokCluster"), r.management, &infrav1.KwokCluster{})
	return builder.ControllerManagedBy(manager).
		Named("kwokcluster").
		For(&infrav1.KwokCluster{}).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(ofCluster), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(options).
		Complete(reconcile.AsReconciler(r.management, r))
}

// Reconcile brings one KwokCluster's status up to date.
func (r *clusterReconciler) Reconcile(ctx context.Context, kwokCluster *infrav1.KwokCluster) (reconcile.Result, error) {
	if !kwokCluster.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil // there is nothing to tear down
	}
	before := kwokCluster.DeepCopy()
	if err := r.reconcile(ctx, kwokCluster); err != nil {
		return reconcile.Result{}, err
	}
	return retryConflict(writeStatus(ctx, r.management, before, kwokCluster))
}

func (r *clusterReconciler) reconcile(ctx context.Context, kwokCluster *infrav1.KwokCluster) error {
	cluster, err := util.GetOwnerCluster(ctx, r.management, kwokCluster.ObjectMeta)
	if err == nil && cluster == nil || apierrors.IsNotFound(err) {
		setCondition(kwokCluster, infrav1.ConditionReady, metav1.ConditionFalse, infrav1.ReasonWaitingForOwner,
			"no Cluster owns this KwokCluster yet; one whose spec.infrastructureRef names it will")
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the owner: %w", err)
	}
	if annotations.IsPaused(cluster, kwokCluster) {
		setCondition(kwokCluster, infrav1.ConditionPaused, metav1.ConditionTrue, infrav1.ReasonPaused, "")
		return nil
	}
	unpause(kwokCluster)
	provisioned := true
	kwokCluster.Status.Initialization.Provisioned = &provisioned
	kwokCluster.Status.FailureDomains = kwokCluster.Spec.FailureDomains
	setCondition(kwokCluster, infrav1.ConditionReady, metav1.ConditionTrue, infrav1.ReasonReady, "")
	return nil
}
