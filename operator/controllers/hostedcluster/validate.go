// SPDX-License-Identifier: Apache-2.0

package hostedcluster

import (
	"context"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/clusterstatus/consent"
	"github.com/autonode-io/autonode/operator/provider"
	"github.com/autonode-io/autonode/operator/scope"
	"github.com/autonode-io/autonode/operator/steps/nodeupgrade"
	"github.com/autonode-io/autonode/operator/steps/sleep"
)

// decision is the content of ValidConfiguration.
type decision struct {
	reason, message string
	// fatal: the Cluster isn't even read.
	fatal bool
	// recheck is provider.Finding's.
	recheck time.Duration
}

func (v decision) status() metav1.ConditionStatus {
	if v.reason == v1beta1.AsExpectedReason {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}

// validate makes the checks that admission can't make, or may have missed. An error means that a check couldn't run.
func (r *Reconciler) validate(ctx context.Context, s *scope.Scope, conflicting string) (decision, error) {
	hostedCluster := s.HostedCluster
	invalid := func(reason, format string, args ...any) decision {
		return decision{reason: reason, message: fmt.Sprintf(format, args...), fatal: true}
	}

	errs, dedicated := validation.IsValidLabelValue(hostedCluster.Name), hostedCluster.DedicatedNamespace()
	switch {
	case len(errs) > 0:
		return invalid(v1beta1.InvalidSpecReason,
			"metadata.name: what is made for the HostedCluster has its name as a label: %s; recreate it with another name", errs[0]), nil
	case s.ControlPlaneNamespace != dedicated && s.ControlPlaneNamespace != hostedCluster.Namespace:
		return invalid(v1beta1.ControlPlaneNamespaceForbiddenReason,
			"spec.controlPlaneNamespace: %q is neither %q nor %q; recreate the HostedCluster without it", s.ControlPlaneNamespace, dedicated,
			hostedCluster.Namespace), nil
	case hostedCluster.SharesNamespace() && s.ControlPlaneNamespace != hostedCluster.Namespace:
		return invalid(v1beta1.ControlPlaneNamespaceForbiddenReason,
			"spec.controlPlaneNamespaceMode: only HostedClusters of one namespace share it; recreate the HostedCluster with "+
				"controlPlaneNamespace: %s", hostedCluster.Namespace), nil
	// Namespaces and names are joined: a HostedCluster "system" in namespace "kube" would get kube-system.
	case strings.HasPrefix(s.ControlPlaneNamespace, "kube-") || s.ControlPlaneNamespace == r.operatorNamespace:
		return invalid(v1beta1.ControlPlaneNamespaceForbiddenReason,
			"spec.controlPlaneNamespace: %q is for the management cluster itself; recreate the HostedCluster with another name or in "+
				"another namespace", s.ControlPlaneNamespace), nil
	}
	if message, err := r.conflicts(ctx, s, conflicting); err != nil {
		return decision{}, err
	} else if message != "" {
		return invalid(v1beta1.InvalidSpecReason, "%s", message), nil
	}

	config := hostedCluster.Spec.AutoNode.ProvisionerConfig
	if config.Name != v1beta1.ProvisionerKarpenter {
		return invalid(v1beta1.InvalidSpecReason, "spec.autoNode.provisionerConfig.name: %q is unknown; it has to be %q", config.Name,
			v1beta1.ProvisionerKarpenter), nil
	}
	if config.Karpenter == nil {
		return invalid(v1beta1.InvalidSpecReason, "spec.autoNode.provisionerConfig.karpenter is required when name is Karpenter"), nil
	}
	profile, ok := r.profiles[config.Karpenter.Platform]
	if !ok {
		return invalid(v1beta1.PlatformUnsupportedReason,
			"spec.autoNode.provisionerConfig.karpenter.platform: this operator can't run Karpenter on %q, only on %s",
			config.Karpenter.Platform, r.profiles), nil
	}
	if err := profile.CheckSpec(config.Karpenter); err != nil {
		return invalid(v1beta1.InvalidSpecReason, "spec.autoNode.provisionerConfig.karpenter.%s", err), nil
	}
	// Check consent before anything that isn't fatal: without it nothing further is read or written.
	consents, err := consent.Given(ctx, r.management, hostedCluster, s.ClusterKey())
	if err != nil {
		return decision{}, err
	}
	// A deleted Cluster takes its annotation along. The operator continues to observe the objects that it made there, so that the counts
	// reach zero.
	if !consents && (s.Cluster != nil || s.Component == nil) {
		return invalid(v1beta1.ConsentMissingReason, "%s", consent.Missing(hostedCluster, s.ClusterKey())), nil
	}
	if allowed, message, err := r.mayWrite(ctx, s); err != nil {
		return decision{}, err
	} else if !allowed {
		return decision{reason: v1beta1.NamespaceAccessMissingReason, message: message, fatal: true, recheck: accessRecheck}, nil
	}
	if s.Profile != profile {
		return decision{
			reason: v1beta1.InvalidSpecReason,
			message: fmt.Sprintf("spec.autoNode.provisionerConfig.karpenter.platform: %q can't take over from %q, which still runs in namespace "+
				"%s; remove spec.autoNode, wait until nodes are drained, and set it again", profile.Platform,
				provider.PlatformOf(hostedCluster, s.Component), s.ControlPlaneNamespace),
			fatal: s.Profile == nil, // made by an operator with more platforms
		}, nil
	}

	_, _, err = sleep.Decide(hostedCluster, profile, r.clock.Now())
	if err == nil {
		err = nodeupgrade.Check(ctx, r.management, hostedCluster, profile)
	}
	if err != nil {
		return decision{reason: v1beta1.InvalidSpecReason, message: err.Error()}, nil //nolint:nilerr // the spec's error, and not one of looking
	}
	if s.Cluster == nil {
		return decision{reason: v1beta1.ClusterNotFoundReason, message: fmt.Sprintf("there is no Cluster %s; create it, or correct spec.infraID",
			s.ClusterKey())}, nil
	}
	if !s.Cluster.DeletionTimestamp.IsZero() {
		return decision{reason: v1beta1.ClusterDeletingReason, message: fmt.Sprintf(
			"Cluster %s is being deleted, and nothing is installed or launched any more; delete the HostedCluster too", s.ClusterKey())}, nil
	}
	finding, err := profile.CheckCluster(ctx, provider.Input{
		Namespace: s.ControlPlaneNamespace, ClusterName: s.ClusterKey().Name, Names: s.Names(), Cluster: s.Cluster, Config: config.Karpenter,
		Reader: r.management, Mapper: r.management.RESTMapper(),
	})
	if err != nil {
		return decision{}, err
	}
	if finding.Reason != "" {
		return decision{reason: finding.Reason, message: finding.Message, recheck: finding.Recheck}, nil
	}
	return decision{reason: v1beta1.AsExpectedReason}, nil
}

// conflicts returns why the HostedCluster can't have its control-plane namespace; empty if it can. Conflicting is the owner of a component
// of the HostedCluster's name there.
func (r *Reconciler) conflicts(ctx context.Context, s *scope.Scope, conflicting string) (string, error) {
	other, err := r.firstOf(ctx, s)
	if err != nil {
		return "", err
	}
	if other != nil {
		return exclusion(s, client.ObjectKeyFromObject(other).String(),
			other.SharesNamespace() && other.Namespace == s.HostedCluster.Namespace), nil
	}
	if conflicting != "" {
		return exclusion(s, conflicting, true), nil
	}
	if s.Component != nil {
		return "", nil
	}
	owner, err := r.conflictingOwner(ctx, s)
	if err != nil || owner == "" {
		return "", err
	}
	return exclusion(s, owner, false), nil
}

// firstOf returns the HostedCluster that owns the control-plane namespace, if it is another one that excludes this one. Names can collide:
// a-b/c and a/b-c have the same default. It covers this operator's HostedClusters; between operators, the first to
// create the ControlPlaneComponent owns the namespace.
func (r *Reconciler) firstOf(ctx context.Context, s *scope.Scope) (*v1beta1.HostedCluster, error) {
	list := &v1beta1.HostedClusterList{}
	if err := r.management.List(ctx, list, client.MatchingFields{controlPlaneNamespaceIndex: s.ControlPlaneNamespace}); err != nil {
		return nil, fmt.Errorf("listing the hosted clusters of namespace %s: %w", s.ControlPlaneNamespace, err)
	}
	first := s.HostedCluster
	for i := range list.Items {
		// Another tenant's control plane is off limits even if that tenant doesn't use AutoNode.
		if other := &list.Items[i]; excludes(other, s.HostedCluster) && (claims(other) || other.Namespace != s.HostedCluster.Namespace) &&
			before(other, first) {
			first = other
		}
	}
	if first == s.HostedCluster || first.UID == s.HostedCluster.UID {
		return nil, nil
	}
	return first, nil
}

// before orders HostedClusters that want the same namespace: one with objects there comes first, then the older one.
func before(a, b *v1beta1.HostedCluster) bool {
	if a.UID == b.UID {
		return false
	}
	if holds(a) != holds(b) {
		return holds(a)
	}
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Namespace+"/"+a.Name < b.Namespace+"/"+b.Name
}

// claims reports whether a HostedCluster requires its control-plane namespace for AutoNode, or still has objects there.
func claims(obj client.Object) bool {
	hostedCluster, ok := obj.(*v1beta1.HostedCluster)
	return ok && (hostedCluster.Spec.AutoNode != nil || holds(hostedCluster))
}

// holds reports whether objects created for the HostedCluster have still to be removed.
func holds(hostedCluster *v1beta1.HostedCluster) bool {
	return controllerutil.ContainsFinalizer(hostedCluster, v1beta1.HostedClusterFinalizer)
}
