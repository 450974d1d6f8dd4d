// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	clusterlabels "sigs.k8s.io/cluster-api/util/labels"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/informer"
)

// MachineDeploymentSelector returns a node class's selector of MachineDeployments, or nil if it selects none.
func MachineDeploymentSelector(nodeClass *v1alpha1.ClusterAPINodeClass) *metav1.LabelSelector {
	if nodeClass.Spec.ScalableResourceSelector == nil && len(nodeClass.Spec.InfrastructureTemplateSelectors) == 0 &&
		len(nodeClass.Spec.CatalogSelectors) == 0 {
		return &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.MemberLabel: ""}}
	}
	return nodeClass.Spec.ScalableResourceSelector
}

// machineDeployments finds MachineDeployments. The provider only reads them and never changes their replicas.
type machineDeployments struct{ Config }

func (m machineDeployments) find(ctx context.Context, nodeClass *v1alpha1.ClusterAPINodeClass, found *Found) error {
	selector := MachineDeploymentSelector(nodeClass)
	if selector == nil {
		return nil
	}
	matches, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		found.SelectorErrs = append(found.SelectorErrs, fmt.Errorf("spec.scalableResourceSelector: %w", err))
		return nil
	}
	objects, err := m.list(ctx, MachineDeploymentKind, found)
	if err != nil {
		return err
	}
	for _, object := range objects {
		if !matches.Matches(labelsOf(object)) {
			continue
		}
		if err := m.read(ctx, object, nodeClass.Spec.DefaultArchitecture, found); err != nil {
			return err
		}
	}
	return nil
}

// read adds one MachineDeployment. The only error is that of ctx.
func (m machineDeployments) read(ctx context.Context, object *unstructured.Unstructured, arch string, found *Found) error {
	source := sourceOf(object)
	md := &clusterv1.MachineDeployment{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, md); err != nil {
		found.Matching = append(found.Matching, source)
		found.add(Template{}, &InvalidError{Source: source, Problem: fmt.Sprintf("can't be read as a MachineDeployment: %s", err)})
		return nil
	}
	if md.Spec.ClusterName != m.ClusterName {
		found.Existing[MachineDeploymentKind]--
		return nil
	}
	found.Matching = append(found.Matching, source)
	machine := &md.Spec.Template
	tmpl := Template{Source: source, Machine: machine, Replicas: int(max(ptr.Deref(md.Spec.Replicas, 0), ptr.Deref(md.Status.Replicas, 0)))}
	if machine.Spec.FailureDomain != "" {
		tmpl.FailureDomains = []string{machine.Spec.FailureDomain}
	}

	ref := machine.Spec.InfrastructureRef
	template, err := m.get(ctx, ref)
	if err == nil {
		tmpl.Source.ResourceVersions += "," + string(template.GetUID()) + "@" + template.GetResourceVersion()
		tmpl.Paused = ptr.Deref(md.Spec.Paused, false) || annotations.HasPaused(object) || annotations.HasPaused(template)
		tmpl.Bootstrap, err = m.bootstrap(ctx, machine.Spec.Bootstrap)
		ref = machine.Spec.Bootstrap.ConfigRef
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil && m.Shared && !m.mayUse(template, tmpl.Bootstrap.ConfigTemplate):
		found.add(Template{}, &InvalidError{Source: source, Problem: "a template that it refers to belongs to another Cluster", Unresolved: true})
		return nil
	case apierrors.IsNotFound(err):
		found.add(Template{}, &InvalidError{Source: source, Unresolved: true,
			Problem: fmt.Sprintf("%s %s, which it refers to, doesn't exist", ref.Kind, ref.Name)})
		return nil
	case err != nil && !informer.IsUnreadable(err): // the object is no template
		found.add(Template{}, &InvalidError{Source: source, Problem: err.Error(), Unresolved: true})
		return nil
	case err != nil:
		found.unreadable(err, source)
		return nil
	}

	if invalid := tmpl.setTemplate(template); invalid != nil {
		found.add(Template{}, invalid)
		return nil
	}
	if invalid := tmpl.read(
		m.infrastructure(template),
		// Cluster API copies some of a Machine's labels to its node, and the taints only behind a feature gate.
		layer{object: object, labels: clusterlabels.GetManagedLabels(maps.Clone(machine.Labels)), taints: taintsOf(machine.Spec.Taints)},
	); invalid != nil {
		found.add(Template{}, invalid)
		return nil
	}
	if tmpl.Version() != "" {
		tmpl.ImageVersion = ""
	}
	found.add(tmpl, tmpl.complete(arch))
	return nil
}

// mayUse reports whether no template is another Cluster's. Those of no Cluster are this one's: its MachineDeployment refers to them.
func (m machineDeployments) mayUse(templates ...*unstructured.Unstructured) bool {
	config := m.Config
	config.Shared = false
	return !slices.ContainsFunc(templates, func(template *unstructured.Unstructured) bool {
		return template != nil && !config.belongs(template)
	})
}

// bootstrap returns the MachineDeployment's own bootstrap, or none.
func (m machineDeployments) bootstrap(ctx context.Context, b clusterv1.Bootstrap) (Bootstrap, error) {
	switch {
	case b.ConfigRef.IsDefined():
		return templateBootstrap(ctx, m.Objects, schema.GroupKind{Group: b.ConfigRef.APIGroup, Kind: b.ConfigRef.Kind}, b.ConfigRef.Name)
	case ptr.Deref(b.DataSecretName, "") != "":
		return secretBootstrap(*b.DataSecretName), nil
	}
	return Bootstrap{}, nil
}

func (m machineDeployments) get(ctx context.Context, ref clusterv1.ContractVersionedObjectReference) (*unstructured.Unstructured, error) {
	return m.Objects.Get(ctx, schema.GroupKind{Group: ref.APIGroup, Kind: ref.Kind}, ref.Name)
}

func taintsOf(taints []clusterv1.MachineTaint) []corev1.Taint {
	var result []corev1.Taint
	for _, t := range taints {
		result = append(result, corev1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect})
	}
	return result
}
