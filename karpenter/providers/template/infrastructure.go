// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// templates finds infrastructure machine templates by kind and labels.
type templates struct{ Config }

func (t templates) find(ctx context.Context, nodeClass *v1alpha1.ClusterAPINodeClass, found *Found) error {
	for i, selector := range nodeClass.Spec.InfrastructureTemplateSelectors {
		matches, err := metav1.LabelSelectorAsSelector(&selector.Selector)
		if err != nil {
			found.SelectorErrs = append(found.SelectorErrs, fmt.Errorf("spec.infrastructureTemplateSelectors[%d].selector: %w", i, err))
			continue
		}
		gk := schema.GroupKind{Group: selector.APIGroup, Kind: selector.Kind}
		objects, err := t.list(ctx, gk, found)
		if err != nil {
			return err
		}
		for _, template := range objects {
			if !matches.Matches(labelsOf(template)) {
				continue
			}
			found.Matching = append(found.Matching, sourceOf(template))
			if invalid, err := t.controlPlaneError(ctx, template, found); err != nil {
				return err
			} else if invalid != nil {
				found.add(Template{}, invalid)
				continue
			}
			tmpl, invalid := t.read(template, nodeClass.Spec.DefaultArchitecture)
			found.add(tmpl, invalid)
		}
	}
	return nil
}

// controlPlaneError returns why a template isn't for nodes: a machine of the control plane was made from it, as Cluster API writes on that.
// A selector without labels selects such a template, too. The only error is that of ctx.
func (t templates) controlPlaneError(ctx context.Context, template *unstructured.Unstructured, found *Found) (*InvalidError, error) {
	if t.ControlPlanes == nil {
		return nil, nil //nolint:nilnil // nothing is wrong with it
	}
	gk := template.GroupVersionKind().GroupKind()
	machines, err := t.ControlPlanes.List(ctx,
		schema.GroupKind{Group: gk.Group, Kind: strings.TrimSuffix(gk.Kind, clusterv1.TemplateSuffix)}, everything)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		found.unreadable(err) // nor could a machine be made from it
	}
	for _, machine := range machines {
		cloned := machine.GetAnnotations()
		if cloned[clusterv1.TemplateClonedFromNameAnnotation] == template.GetName() &&
			cloned[clusterv1.TemplateClonedFromGroupKindAnnotation] == gk.String() {
			return &InvalidError{Source: sourceOf(template), Problem: fmt.Sprintf(
				"%s %s of the control plane was made from it; make a template of its own for nodes, or select by a label that this one doesn't have",
				machine.GetKind(), machine.GetName())}, nil
		}
	}
	return nil, nil //nolint:nilnil // nothing is wrong with it
}

func (t templates) read(template *unstructured.Unstructured, arch string) (Template, *InvalidError) {
	tmpl := Template{Source: sourceOf(template), Paused: annotations.HasPaused(template)}
	if invalid := tmpl.setTemplate(template); invalid != nil {
		return Template{}, invalid
	}
	if invalid := tmpl.read(t.infrastructure(template)); invalid != nil {
		return Template{}, invalid
	}
	return tmpl, tmpl.complete(arch)
}

// infrastructure returns the layer of an infrastructure template.
func (c Config) infrastructure(template *unstructured.Unstructured) layer {
	return layer{object: template, kind: ptr.To(c.Profiles.For(template.GroupVersionKind().GroupKind()))}
}

// setTemplate sets the infrastructure template.
func (s *Template) setTemplate(template *unstructured.Unstructured) *InvalidError {
	hash, err := contentHash(template)
	if err != nil {
		return &InvalidError{Source: s.Source, Problem: err.Error()}
	}
	s.Infrastructure, s.ContentHash, s.OwnedHash = template, hash, ownedHash(template)
	return nil
}

// list returns the objects of a kind that belong to the Cluster or to none, and aren't being deleted. It adds a kind
// that can't be read to found.
func (c Config) list(ctx context.Context, gk schema.GroupKind, found *Found) ([]*unstructured.Unstructured, error) {
	objects, err := c.Objects.List(ctx, gk, everything)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		found.unreadable(err)
		return nil, nil
	}
	var ours []*unstructured.Unstructured
	for _, object := range objects {
		if object.GetDeletionTimestamp() == nil && c.belongs(object) {
			ours = append(ours, object)
		}
	}
	found.Existing[gk] = len(ours)
	if c.Shared {
		found.Others[gk] = len(objects) - len(ours)
	}
	return ours, nil
}

// belongs reports whether an object isn't another Cluster's, and in a shared namespace whether it is this one's.
func (c Config) belongs(object *unstructured.Unstructured) bool {
	name, ours := object.GetLabels()[clusterv1.ClusterNameLabel]
	if ours && name != c.ClusterName {
		return false
	}
	for _, owner := range object.GetOwnerReferences() {
		gv, err := schema.ParseGroupVersion(owner.APIVersion)
		if err != nil || gv.Group != ClusterKind.Group || owner.Kind != ClusterKind.Kind {
			continue
		}
		if owner.Name != c.ClusterName {
			return false
		}
		ours = true
	}
	return ours || !c.Shared
}

func sourceOf(object *unstructured.Unstructured) Source {
	return Source{
		GroupKind:        object.GroupVersionKind().GroupKind(),
		Namespace:        object.GetNamespace(),
		Name:             object.GetName(),
		UID:              object.GetUID(),
		ResourceVersions: object.GetResourceVersion(),
	}
}
