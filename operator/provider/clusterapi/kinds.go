// SPDX-License-Identifier: Apache-2.0

package clusterapi

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/assets/infrastructure"
	karpenterassets "github.com/autonode-io/autonode/assets/karpenter"
	"github.com/autonode-io/autonode/assets/references"
	"github.com/autonode-io/autonode/internal/lenient"
	"github.com/autonode-io/autonode/operator/provider"
)

// checkCluster looks for the kinds that the spec names, the templates and their clones, and at the bootstrap Secret.
func checkCluster(ctx context.Context, in provider.Input) (provider.Finding, error) {
	config := in.Config.ClusterAPI
	var templates []schema.GroupKind
	for _, selector := range config.InfrastructureTemplateSelectors {
		templates = append(templates, schema.GroupKind{Group: selector.APIGroup, Kind: selector.Kind})
	}
	if config.Bootstrap != nil && config.Bootstrap.ConfigTemplateRef != nil {
		ref := config.Bootstrap.ConfigTemplateRef
		templates = append(templates, schema.GroupKind{Group: ref.APIGroup, Kind: ref.Kind})
	}
	var missing []string
	for _, template := range templates {
		for _, kind := range []schema.GroupKind{template, cloned(template)} {
			switch _, err := in.Mapper.RESTMapping(kind); {
			case meta.IsNoMatchError(err):
				missing = append(missing, kind.String())
			case err != nil:
				return provider.Finding{}, fmt.Errorf("looking up kind %s: %w", kind, err)
			}
		}
	}
	if len(missing) > 0 {
		return provider.Finding{
			Reason:  v1beta1.KindNotFoundReason,
			Message: fmt.Sprintf("the management cluster doesn't serve %s; install its provider, or correct the name", strings.Join(missing, ", ")),
		}, nil
	}
	return checkSecret(ctx, in)
}

// cloned is the kind of the objects that are made from a template.
func cloned(template schema.GroupKind) schema.GroupKind {
	return schema.GroupKind{Group: template.Group, Kind: strings.TrimSuffix(template.Kind, clusterv1.TemplateSuffix)}
}

// Karpenter's verbs for each kind, and nothing more: Cluster API and its providers see to the objects that were made. Those of the
// infrastructure are watched for problems that keep a machine from coming. Karpenter makes the Machine their owner by a patch, and policies
// let it change nothing else of them.
var (
	templateVerbs       = []string{"list", "watch"}
	bootstrapVerbs      = []string{"get", "list", "create", "delete"}
	infrastructureVerbs = []string{"get", "list", "watch", "create", "patch", "delete"}
)

// kubeadm is the resource of bootstrap configs whose data Karpenter can render.
var kubeadm = schema.GroupResource{Group: "bootstrap.cluster.x-k8s.io", Resource: "kubeadmconfigs"}

// naming is how a template's kind came to be named.
type naming struct {
	// demanded: the HostedCluster names it, and not only a MachineDeployment that it selects.
	demanded bool
	// bootstrap: it is a bootstrap provider's kind, and not an infrastructure provider's.
	bootstrap bool
}

// role adds the kinds of this cluster's infrastructure and bootstrap: Karpenter reads the templates and writes their clones.
func (g groups) role(ctx context.Context, in provider.Input) (*rbacv1.Role, error) {
	role, err := karpenterassets.Role()
	if err != nil {
		return nil, err
	}
	named, err := templates(ctx, in)
	if err != nil {
		return nil, err
	}
	read, bootstraps, infrastructure := map[string]sets.Set[string]{}, map[string]sets.Set[string]{}, map[string]sets.Set[string]{}
	for template, how := range named {
		if g.check(template.Group, template.Kind) != nil {
			continue // whoever names it: a MachineDeployment's templates are in the spec of no HostedCluster that could be refused
		}
		write := infrastructure
		if how.bootstrap {
			write = bootstraps
		}
		for kind, rules := range map[schema.GroupKind]map[string]sets.Set[string]{template: read, cloned(template): write} {
			mapping, err := in.Mapper.RESTMapping(kind)
			if meta.IsNoMatchError(err) && !how.demanded {
				continue // the MachineDeployment that names it can't work either; the node class reports it
			}
			if err != nil {
				return nil, fmt.Errorf("looking up kind %s: %w", kind, err)
			}
			if rules[kind.Group] == nil {
				rules[kind.Group] = sets.New[string]()
			}
			rules[kind.Group].Insert(mapping.Resource.Resource)
		}
	}
	role.Rules = append(role.Rules, rulesFor(read, templateVerbs)...)
	role.Rules = append(role.Rules, rulesFor(bootstraps, bootstrapVerbs)...)
	role.Rules = append(role.Rules, rulesFor(infrastructure, infrastructureVerbs)...)
	if reboots, err := rebootable(named); err != nil {
		return nil, err
	} else if reboots {
		// Karpenter reboots a machine through a MachineHealthCheck, and looks for one first.
		role.Rules = append(role.Rules, rbacv1.PolicyRule{
			APIGroups: []string{clusterv1.GroupVersion.Group}, Resources: []string{"machinehealthchecks"}, Verbs: []string{"list"},
		})
	}
	if bootstraps[kubeadm.Group].Has(kubeadm.Resource) {
		// Karpenter renders their bootstrap data itself where it can. A policy in the management cluster bounds which Secrets it may create.
		role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"create"}})
	}
	allowed, err := g.references(ctx, in, named)
	if err != nil {
		return nil, err
	}
	if len(allowed) > 0 { // a rule without names would allow all
		role.Rules = append(role.Rules, rbacv1.PolicyRule{
			APIGroups: []string{v1beta1.GroupVersion.Group}, Resources: []string{references.Resource},
			ResourceNames: allowed, Verbs: []string{references.Verb},
		})
	}
	finding, err := checkSecret(ctx, in)
	if err != nil {
		return nil, err
	}
	if bootstrap := in.Config.ClusterAPI.Bootstrap; bootstrap != nil && bootstrap.DataSecretName != "" && finding.Reason == "" {
		role.Rules = append(role.Rules, rbacv1.PolicyRule{
			APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{bootstrap.DataSecretName}, Verbs: []string{"get"},
		})
	}
	return role, nil
}

// rebootable reports whether the infrastructure provider of one of these templates can reboot a machine in place. A platform's own profiles
// are for Karpenter alone.
func rebootable(templates map[schema.GroupKind]naming) (bool, error) {
	profiles, err := infrastructure.Embedded()
	if err != nil {
		return false, fmt.Errorf("reading the profiles of infrastructure kinds: %w", err)
	}
	for template, how := range templates {
		if !how.bootstrap && profiles.For(template).Reboots() {
			return true, nil
		}
	}
	return false, nil
}

// rulesFor is sorted, so that the same kinds always make the same Role.
func rulesFor(resources map[string]sets.Set[string], verbs []string) []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	for _, group := range slices.Sorted(maps.Keys(resources)) {
		rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{group}, Resources: sets.List(resources[group]), Verbs: verbs})
	}
	return rules
}

// templates returns the template kinds that the HostedCluster names, and those of the MachineDeployments and catalogs that it selects.
func templates(ctx context.Context, in provider.Input) (map[schema.GroupKind]naming, error) {
	kinds, config := map[schema.GroupKind]naming{}, in.Config.ClusterAPI
	if config.ScalableResourceSelector != nil {
		selector, err := lenient.Selector(config.ScalableResourceSelector)
		if err != nil {
			return nil, fmt.Errorf("parsing scalableResourceSelector: %w", err)
		}
		deployments := &clusterv1.MachineDeploymentList{}
		if err := in.Reader.List(ctx, deployments,
			client.InNamespace(in.Namespace), client.MatchingLabelsSelector{Selector: selector}); err != nil {
			return nil, fmt.Errorf("listing machine deployments: %w", err)
		}
		for i := range deployments.Items {
			spec := &deployments.Items[i].Spec
			if spec.ClusterName != in.ClusterName {
				continue
			}
			kinds[spec.Template.Spec.InfrastructureRef.GroupKind()] = naming{}
			if ref := spec.Template.Spec.Bootstrap.ConfigRef; ref.IsDefined() {
				kinds[ref.GroupKind()] = naming{bootstrap: true}
			}
		}
	}
	if err := catalogs(ctx, in, kinds); err != nil {
		return nil, err
	}
	for _, selector := range config.InfrastructureTemplateSelectors {
		kinds[schema.GroupKind{Group: selector.APIGroup, Kind: selector.Kind}] = naming{demanded: true}
	}
	if bootstrap := config.Bootstrap; bootstrap != nil && bootstrap.ConfigTemplateRef != nil {
		template := bootstrap.ConfigTemplateRef
		kinds[schema.GroupKind{Group: template.APIGroup, Kind: template.Kind}] = naming{demanded: true, bootstrap: true}
	}
	return kinds, nil
}

// catalogs adds the kinds of the templates that the selected catalogs refer to.
func catalogs(ctx context.Context, in provider.Input, kinds map[schema.GroupKind]naming) error {
	for i, selector := range in.Config.ClusterAPI.CatalogSelectors {
		matches, err := lenient.Selector(&selector.Selector)
		if err != nil {
			return fmt.Errorf("parsing catalogSelectors[%d].selector: %w", i, err)
		}
		namespace := in.Namespace
		if selector.Scope == v1alpha1.CatalogScopeShared {
			if namespace = in.SharedCatalogNamespace; namespace == "" {
				continue // the node class reports it
			}
		}
		found := &v1alpha1.InstanceTypeCatalogList{}
		if err := in.Reader.List(ctx, found, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: matches}); err != nil {
			return fmt.Errorf("listing catalogs: %w", err)
		}
		for i := range found.Items {
			ref := found.Items[i].Spec.TemplateRef
			kinds[schema.GroupKind{Group: ref.APIGroup, Kind: ref.Kind}] = naming{}
		}
	}
	return nil
}
