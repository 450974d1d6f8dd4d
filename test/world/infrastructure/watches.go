// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

func (r *machineReconciler) setup(manager ctrl.Manager, options ctrlcontroller.Options) error {
	ofMachine := util.MachineToInfrastructureMapFunc(infrav1.GroupVersion.WithKind("KwokMachine"))
	return builder.ControllerManagedBy(manager).
		Named("kwokmachine").
		For(&infrav1.KwokMachine{}, builder.WithPredicates(notOnlyStatus)).
		// Cluster API writes a Machine's status many times, and nothing of it is of interest here.
		Watches(&clusterv1.Machine{}, handler.EnqueueRequestsFromMapFunc(ofMachine), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&clusterv1.Cluster{}, handler.EnqueueRequestsFromMapFunc(r.ofCluster),
			builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, infrastructureProvisioned))).
		Watches(&infrav1.KwokCluster{}, handler.EnqueueRequestsFromMapFunc(r.ofKwokCluster),
			builder.WithPredicates(predicate.AnnotationChangedPredicate{})).
		Watches(&infrav1.KwokMachineTemplate{}, handler.EnqueueRequestsFromMapFunc(r.ofTemplate),
			builder.WithPredicates(predicate.AnnotationChangedPredicate{})).
		WatchesRawSource(source.Func(r.identities.Start)).
		WithOptions(options).
		Complete(r)
}

// notOnlyStatus keeps out what this controller writes itself: a message that differs each time, such as one with a port
// number, must not bring the machine here again at once.
var notOnlyStatus = predicate.Funcs{UpdateFunc: func(update event.UpdateEvent) bool {
	was, is := update.ObjectOld, update.ObjectNew
	return was.GetGeneration() != is.GetGeneration() || // spec and deletion
		!slices.Equal(was.GetFinalizers(), is.GetFinalizers()) ||
		!equality.Semantic.DeepEqual(was.GetLabels(), is.GetLabels()) ||
		!equality.Semantic.DeepEqual(was.GetAnnotations(), is.GetAnnotations()) ||
		!equality.Semantic.DeepEqual(was.GetOwnerReferences(), is.GetOwnerReferences())
}}

// infrastructureProvisioned passes the change of a Cluster that its machines wait for.
var infrastructureProvisioned = predicate.Funcs{UpdateFunc: func(update event.UpdateEvent) bool {
	was, is := update.ObjectOld.(*clusterv1.Cluster), update.ObjectNew.(*clusterv1.Cluster)
	return !equality.Semantic.DeepEqual(was.Status.Initialization, is.Status.Initialization)
}}

func (r *machineReconciler) ofCluster(ctx context.Context, cluster client.Object) []reconcile.Request {
	return r.machines(ctx, cluster.GetNamespace(), func(kwokMachine *infrav1.KwokMachine) bool {
		return kwokMachine.Labels[clusterv1.ClusterNameLabel] == cluster.GetName()
	})
}

func (r *machineReconciler) ofKwokCluster(ctx context.Context, kwokCluster client.Object) []reconcile.Request {
	cluster, err := util.GetOwnerCluster(ctx, r.management, kwokCluster.(*infrav1.KwokCluster).ObjectMeta)
	if cluster == nil || err != nil { // its machines have none either then
		return nil
	}
	return r.ofCluster(ctx, cluster)
}

func (r *machineReconciler) ofTemplate(ctx context.Context, template client.Object) []reconcile.Request {
	return r.machines(ctx, template.GetNamespace(), func(kwokMachine *infrav1.KwokMachine) bool {
		return clonedFrom(kwokMachine) == template.GetName()
	})
}

// machines returns the machines of a namespace that match.
func (r *machineReconciler) machines(ctx context.Context, namespace string, match func(*infrav1.KwokMachine) bool) []reconcile.Request {
	list := &infrav1.KwokMachineList{}
	if err := r.management.List(ctx, list, client.InNamespace(namespace)); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Listing machines")
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if match(&list.Items[i]) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}
