// SPDX-License-Identifier: Apache-2.0

package clusterapi

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/assets/references"
	"github.com/autonode-io/autonode/operator/provider"
)

// references returns what Karpenter's machines may be, as the Role names it: the texts of the Cluster's templates, the annotations and the
// bootstrap Secrets of its MachineDeployments, the Cluster's name, and the prefix of its instances' names. An infrastructure or bootstrap
// provider gives a machine what its objects name, and Karpenter itself may read none of it. The policies reject everything else.
func (g groups) references(ctx context.Context, in provider.Input, named map[schema.GroupKind]naming) ([]string, error) {
	var allowed []string
	var annotations []map[string]string
	deployments := &clusterv1.MachineDeploymentList{}
	if err := in.Reader.List(ctx, deployments, client.InNamespace(in.Namespace)); err != nil {
		return nil, fmt.Errorf("listing machine deployments: %w", err)
	}
	for i := range deployments.Items {
		spec := &deployments.Items[i].Spec
		if spec.ClusterName != in.ClusterName {
			continue
		}
		if name := ptr.Deref(spec.Template.Spec.Bootstrap.DataSecretName, ""); name != "" {
			allowed = append(allowed, references.DataSecret(name))
		}
		if text := references.Annotations(spec.Template.Annotations); text != "" {
			allowed, annotations = append(allowed, text), append(annotations, spec.Template.Annotations)
		}
	}
	if in.Templates != nil {
		for template := range named {
			if g.check(template.Group, template.Kind) != nil {
				continue
			}
			texts, err := in.Templates.Texts(ctx, in.Namespace, template, belongs(in), annotations)
			if err != nil {
				return nil, fmt.Errorf("reading templates: %w", err)
			}
			allowed = append(allowed, texts...)
		}
	}
	if in.Cluster != nil {
		allowed = append(allowed, references.InstancePrefix(v1alpha1.InstancePrefix(in.Cluster.UID)), references.ClusterName(in.ClusterName))
	}
	slices.Sort(allowed)
	return slices.Compact(allowed), nil
}

// belongs reports whether a template is the Cluster's, or of no Cluster where it doesn't share the namespace. Karpenter uses no other.
// Cluster API labels what a Machine refers to, and owns it by the Machine: such a label decides nothing.
func belongs(in provider.Input) func(metav1.Object) bool {
	return func(template metav1.Object) bool {
		name, ours := template.GetLabels()[clusterv1.ClusterNameLabel]
		if ours && name != in.ClusterName {
			return false
		}
		for _, owner := range template.GetOwnerReferences() {
			switch {
			case groupOf(owner) != clusterGroup:
			case owner.Kind == "Machine", owner.Kind == clusterv1.ClusterKind && owner.Name != in.ClusterName:
				return false
			case owner.Kind == clusterv1.ClusterKind:
				ours = true
			}
		}
		return ours || !in.Names.Shared()
	}
}
