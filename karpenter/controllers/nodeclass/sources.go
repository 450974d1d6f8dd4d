// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	"github.com/dustin/go-humanize/english"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/informer"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// sourcesFound reports whether the selectors match readable sources.
type sourcesFound struct{ Config }

func (s sourcesFound) reconcile(_ context.Context, nodeClass *v1alpha1.ClusterAPINodeClass, conditions status.ConditionSet,
	in *instancetype.Listing,
) (reconcile.Result, error) {
	const condition = v1alpha1.ConditionSourcesFound
	unread := unreadOf(nodeClass, in.Found, true)
	sources := len(in.Found.Matching)
	switch {
	case sources == 0 && len(in.Found.SelectorErrs) > 0:
		conditions.SetFalse(condition, v1alpha1.InvalidSelectorReason, summary(in.Found.SelectorErrs))
	case sources == 0 && len(unread) > 0:
		return unreadable(conditions, condition, unread)
	case sources == 0:
		reason, message := nothingMatches(nodeClass, in.Found, s.Namespace)
		conditions.SetFalse(condition, reason, message)
	case len(in.Found.SelectorErrs) > 0:
		conditions.SetTrueWithReason(condition, v1alpha1.InvalidSelectorReason,
			fmt.Sprintf("%s; %s in use", summary(in.Found.SelectorErrs), english.Plural(sources, "other source is", "other sources are")))
	case len(unread) > 0:
		conditions.SetTrueWithReason(condition, v1alpha1.SourceUnreadableReason,
			fmt.Sprintf("%s; %s in use", summary(unread), english.Plural(sources, "other source is", "other sources are")))
	default:
		conditions.SetTrueWithReason(condition, condition, byKind(in.Found.Matching))
	}
	return reconcile.Result{}, nil
}

// referencesResolved reports whether the references of MachineDeployments exist and are readable. bootstrapReady
// covers the node class's own bootstrap.
type referencesResolved struct{ Config }

func (s referencesResolved) reconcile(_ context.Context, nodeClass *v1alpha1.ClusterAPINodeClass, conditions status.ConditionSet,
	in *instancetype.Listing,
) (reconcile.Result, error) {
	const condition = v1alpha1.ConditionReferencesResolved
	unread := unreadOf(nodeClass, in.Found, false)
	var missing []error
	resolved := len(in.Found.Templates)
	for _, invalid := range in.Found.Invalid {
		if invalid.Unresolved {
			missing = append(missing, invalid)
		} else {
			resolved++
		}
	}
	reason, problems := v1alpha1.ReferenceNotFoundReason, slices.Concat(unread, missing)
	if len(unread) > 0 {
		reason = v1alpha1.SourceUnreadableReason
	}
	switch {
	case len(problems) == 0:
		conditions.SetTrue(condition)
	case resolved > 0:
		conditions.SetTrueWithReason(condition, reason,
			fmt.Sprintf("%s; the references of %s resolved", summary(problems), english.Plural(resolved, "other source are", "other sources are")))
	case len(missing) == 0:
		return unreadable(conditions, condition, unread)
	default:
		conditions.SetFalse(condition, reason, summary(problems))
	}
	return reconcile.Result{}, nil
}

// unreadOf returns the errors of unreadable kinds that the node class selects, or that selected objects refer to.
func unreadOf(nodeClass *v1alpha1.ClusterAPINodeClass, found *template.Found, selected bool) []error {
	kinds := map[schema.GroupKind]bool{}
	if template.MachineDeploymentSelector(nodeClass) != nil {
		kinds[template.MachineDeploymentKind] = true
	}
	for _, selector := range nodeClass.Spec.InfrastructureTemplateSelectors {
		kinds[schema.GroupKind{Group: selector.APIGroup, Kind: selector.Kind}] = true
	}
	kinds[template.CatalogKind] = len(nodeClass.Spec.CatalogSelectors) > 0
	var errs []error
	for _, err := range found.Unreadable {
		var unreadable *informer.UnreadableError
		if (errors.As(err, &unreadable) && kinds[unreadable.GroupKind]) == selected {
			errs = append(errs, err)
		}
	}
	return errs
}

// nothingMatches reports for each selector how many objects exist that it could match.
func nothingMatches(nodeClass *v1alpha1.ClusterAPINodeClass, found *template.Found, namespace string) (reason, message string) {
	if nodeClass.Spec.ScalableResourceSelector == nil &&
		len(nodeClass.Spec.InfrastructureTemplateSelectors)+len(nodeClass.Spec.CatalogSelectors) == 0 {
		return v1alpha1.NoSelectorReason, fmt.Sprintf(
			"the node class has no selector, and no MachineDeployment in namespace %s of the management cluster has the label %s; set "+
				"spec.infrastructureTemplateSelectors or spec.scalableResourceSelector, or spec.catalogSelectors",
			namespace, v1alpha1.MemberLabel)
	}
	var parts []string
	namespaced := "namespace " + namespace
	say := func(gk schema.GroupKind, where, field string, selector *metav1.LabelSelector) {
		text := metav1.FormatLabelSelector(selector)
		if text == "<none>" {
			text = "everything"
		}
		existing := "none exists"
		if n := found.Existing[gk]; n > 0 {
			existing = english.Plural(n, "exists, and it doesn't have the labels", "exist, and none has the labels")
		}
		if n := found.Others[gk]; n > 0 && where == namespaced {
			existing += fmt.Sprintf("; %d of the namespace, which Clusters share, aren't this Cluster's: label those that are with %s", n,
				clusterv1.ClusterNameLabel)
		}
		parts = append(parts, fmt.Sprintf("no %s in %s of the management cluster matches %s (%s): %s", gk.Kind, where, field, text, existing))
	}
	for i, selector := range nodeClass.Spec.CatalogSelectors {
		where := namespaced
		if selector.Scope == v1alpha1.CatalogScopeShared {
			where = "the namespace of shared catalogs"
		}
		say(template.CatalogKind, where, fmt.Sprintf("spec.catalogSelectors[%d]", i), &selector.Selector)
	}
	for i, selector := range nodeClass.Spec.InfrastructureTemplateSelectors {
		say(schema.GroupKind{Group: selector.APIGroup, Kind: selector.Kind}, namespaced,
			fmt.Sprintf("spec.infrastructureTemplateSelectors[%d]", i), &selector.Selector)
	}
	if selector := nodeClass.Spec.ScalableResourceSelector; selector != nil {
		say(template.MachineDeploymentKind, namespaced, "spec.scalableResourceSelector", selector)
	}
	return v1alpha1.NoTemplatesReason, strings.Join(parts, "; ")
}

// byKind counts sources: "2 KwokMachineTemplates, 1 MachineDeployment".
func byKind(sources []template.Source) string {
	counts := map[string]int{}
	var kinds []string
	for _, source := range sources {
		kind := source.GroupKind.Kind
		if counts[kind]++; counts[kind] == 1 {
			kinds = append(kinds, kind)
		}
	}
	for i, kind := range kinds {
		kinds[i] = english.Plural(counts[kind], kind, kind+"s")
	}
	return strings.Join(kinds, ", ")
}

// advice returns the remedy for an unreadable kind.
func advice(err error) string {
	switch {
	case apierrors.IsForbidden(err):
		return "; name the kind in spec.autoNode of the HostedCluster, which allows it, or allow Karpenter to get, list and watch it by a " +
			"Role of your own"
	case meta.IsNoMatchError(err):
		return "; install its provider in the management cluster, or correct the kind"
	}
	return ""
}
