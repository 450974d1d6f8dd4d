// SPDX-License-Identifier: Apache-2.0

// Package instancetypecatalog reports which instance types of InstanceTypeCatalogs are usable. Every Karpenter that uses a shared catalog
// would say the same of its entries, so none of them writes its status: the operator does, without a cluster's state. State of one cluster,
// such as whether the template exists, is in the status of its node classes.
package instancetypecatalog

import (
	"context"
	"fmt"

	"github.com/awslabs/operatorpkg/status"
	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/catalog"
	"github.com/autonode-io/autonode/internal/message"
	"github.com/autonode-io/autonode/operator/apply"
)

const (
	// maxNamed is the number of unusable entries that a condition names.
	maxNamed = 3
	// maxMessage and maxName bound the texts of an entry that status repeats, in bytes.
	maxMessage, maxName = 300, 63
)

// Config of a Reporter.
type Config struct {
	// Management writes status, and Live reads catalogs: the cache holds them without their instance types.
	Management client.Client
	Live       client.Reader
	// Recorder writes events on catalogs.
	Recorder events.EventRecorder
}

// Reporter writes the status of catalogs.
type Reporter struct{ Config }

// New returns a Reporter. SetUp starts it.
func New(config Config) *Reporter { return &Reporter{Config: config} }

// +kubebuilder:rbac:groups=karpenter.cluster.x-k8s.io,resources=instancetypecatalogs,verbs=get;list;watch
// +kubebuilder:rbac:groups=karpenter.cluster.x-k8s.io,resources=instancetypecatalogs/status,verbs=patch

// SetUp adds the controller to the manager.
func (r *Reporter) SetUp(mgr manager.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).Named("catalogs").
		For(&v1alpha1.InstanceTypeCatalog{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Complete(r)
	if err != nil {
		return fmt.Errorf("setting up the controller of catalogs: %w", err)
	}
	return nil
}

// Cache is how the operator caches catalogs: without instance types, of which a thousand clusters may have megabytes each.
func Cache() cache.ByObject {
	return cache.ByObject{Transform: func(object any) (any, error) {
		if found, ok := object.(*v1alpha1.InstanceTypeCatalog); ok {
			found.Spec.InstanceTypes, found.Spec.Patches, found.Status = nil, nil, v1alpha1.InstanceTypeCatalogStatus{}
			found.ManagedFields = nil
		}
		return object, nil
	}}
}

// statusFields are the fields of status that the operator writes.
var statusFields = apply.StatusFields{
	Names:      []string{"observedGeneration", "instanceTypeCount", "unusableCount", "offeringCount", "unusable"},
	Conditions: []string{status.ConditionReady, v1alpha1.ConditionCatalogValid, v1alpha1.ConditionInstanceTypesUsable},
}

// Reconcile writes the status of one catalog if it has changed.
func (r *Reporter) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	found := &v1alpha1.InstanceTypeCatalog{}
	if err := r.Live.Get(ctx, request.NamespacedName, found); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	before := found.Status.DeepCopy()
	Report(found)
	if equality.Semantic.DeepEqual(*before, found.Status) {
		return reconcile.Result{}, nil
	}
	if err := apply.Status(ctx, r.Management, found, statusFields); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	now := found.StatusConditions().Get(v1alpha1.ConditionInstanceTypesUsable)
	for _, old := range before.Conditions {
		if old.Type == now.Type && old.Reason == now.Reason {
			return reconcile.Result{}, nil
		}
	}
	switch {
	case now.Reason != v1alpha1.ConditionInstanceTypesUsable:
		r.Recorder.Eventf(found, nil, corev1.EventTypeWarning, now.Reason, "ReadCatalog", "%s", now.Message)
	case len(before.Conditions) > 0:
		r.Recorder.Eventf(found, nil, corev1.EventTypeNormal, now.Reason, "ReadCatalog", "%s", now.Message)
	}
	return reconcile.Result{}, nil
}

// Report sets the status of a catalog from its spec.
func Report(found *v1alpha1.InstanceTypeCatalog) {
	read := catalog.Read(&found.Spec)
	offerings := 0
	for i := range read.Types {
		offerings += len(read.Types[i].Offerings)
	}
	unusable := len(found.Spec.InstanceTypes) - len(read.Types)
	state := &found.Status
	state.ObservedGeneration = found.Generation
	state.InstanceTypeCount, state.UnusableCount = ptr.To(int32(len(read.Types))), ptr.To(int32(unusable))
	state.OfferingCount = ptr.To(int32(offerings))
	state.Unusable = nil
	for _, p := range read.Problems[:min(len(read.Problems), v1alpha1.MaxUnusable)] {
		state.Unusable = append(state.Unusable, v1alpha1.UnusableInstanceType{
			Index: int32(p.Index), Name: message.Cut(p.Name, maxName), OfferingsOnly: p.OfferingsOnly, Message: message.Cut(p.Message, maxMessage),
		})
	}
	conditions := found.StatusConditions()
	if read.Err != nil {
		conditions.SetFalse(v1alpha1.ConditionCatalogValid, v1alpha1.CatalogInvalidReason,
			message.Cut(read.Err.Error(), 2*maxMessage)+"; no instance type is usable until it is corrected")
		conditions.SetFalse(v1alpha1.ConditionInstanceTypesUsable, v1alpha1.CatalogInvalidReason, message.Cut(read.Err.Error(), 2*maxMessage))
		return
	}
	conditions.SetTrue(v1alpha1.ConditionCatalogValid)
	const usable = v1alpha1.ConditionInstanceTypesUsable
	others := english.Plural(len(read.Types), "other instance type is", "other instance types are")
	switch {
	case len(found.Spec.InstanceTypes) == 0:
		conditions.SetFalse(usable, v1alpha1.CatalogEmptyReason,
			"spec.instanceTypes is empty; add an instance type, or import them by autonode catalog import")
	case len(read.Types) == 0:
		conditions.SetFalse(usable, v1alpha1.AllUnusableReason, named(read.Problems))
	case unusable > 0:
		conditions.SetTrueWithReason(usable, v1alpha1.SomeUnusableReason, fmt.Sprintf("%s; the %s usable", named(read.Problems), others))
	case len(read.Problems) > 0:
		conditions.SetTrueWithReason(usable, v1alpha1.SomeUnusableReason,
			fmt.Sprintf("some offerings are unusable: %s; all %s usable", named(read.Problems),
				english.Plural(len(read.Types), "instance type is", "instance types are")))
	default:
		conditions.SetTrueWithReason(usable, usable, fmt.Sprintf("%s with %s", english.Plural(len(read.Types), "instance type", "instance types"),
			english.Plural(offerings, "offering", "offerings")))
	}
}

// named names the first problems.
func named(problems []catalog.Problem) string {
	texts := make([]string, 0, len(problems))
	for _, p := range problems {
		texts = append(texts, message.Cut(p.Error(), maxMessage))
	}
	return message.List(texts, maxNamed, "; ")
}
