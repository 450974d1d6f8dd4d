// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/catalog/patch"
	"github.com/autonode-io/autonode/cli/file"
	"github.com/autonode-io/autonode/cli/templates"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
	"github.com/autonode-io/autonode/karpenter/providers/profile"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// withStatus are templates whose infrastructure provider writes status.capacity. Of others the page has to say what machines have, in a field
// that the profile of the kind names, or in an annotation.
var withStatus = []string{"AWSMachineTemplate", "OpenStackMachineTemplate"}

// shown are the objects of a page, as Karpenter finds them in a control-plane namespace.
type shown struct{ file.Objects }

// resolve returns what Karpenter would launch from, and an error for each source that it would leave out.
func (s shown) resolve(ctx context.Context, clusterName string, spec v1alpha1.ClusterAPINodeClassSpec) ([]template.Template, error) {
	var objects file.Objects
	for _, object := range s.Objects {
		object = object.DeepCopy()
		if slices.Contains(withStatus, object.GetKind()) {
			capacity := map[string]any{"cpu": "2", "memory": "8Gi"}
			if err := unstructured.SetNestedMap(object.Object, capacity, "status", "capacity"); err != nil {
				return nil, err
			}
		}
		objects = append(objects, object)
	}
	nodeClass := &v1alpha1.ClusterAPINodeClass{Spec: spec}
	resolver := template.NewResolver(template.Config{Objects: objects, ClusterName: clusterName, Secrets: templates.AnySecret{}, Profiles: profile.Embedded()})
	found, err := resolver.Resolve(ctx, nodeClass)
	if err != nil {
		return nil, err
	}
	found = found.Checked(func(tmpl *template.Template) error { return machine.CheckPatches(nodeClass, tmpl) })
	problems := append(slices.Clone(found.SelectorErrs), found.BootstrapErr)
	for _, invalid := range found.Invalid {
		problems = append(problems, invalid)
	}
	for i := range found.Templates {
		for _, note := range found.Templates[i].Notes {
			problems = append(problems, note)
		}
	}
	return found.Templates, errors.Join(problems...)
}

// checkTemplate reads a machine template as Karpenter does.
func checkTemplate(ctx context.Context, object *unstructured.Unstructured) error {
	bootstrap := &unstructured.Unstructured{}
	bootstrap.SetGroupVersionKind(schema.GroupVersionKind{Group: "bootstrap.cluster.x-k8s.io", Version: "v1beta2", Kind: "KubeadmConfigTemplate"})
	bootstrap.SetName("specimen")
	if err := unstructured.SetNestedMap(bootstrap.Object, map[string]any{}, "spec", "template", "spec"); err != nil {
		return err
	}
	gvk, clusterName := object.GroupVersionKind(), "specimen"
	for _, owner := range object.GetOwnerReferences() {
		if owner.Kind == "Cluster" {
			clusterName = owner.Name
		}
	}
	found, err := shown{file.Objects{object, bootstrap}}.resolve(ctx, clusterName, v1alpha1.ClusterAPINodeClassSpec{
		TemplateSelectors: v1alpha1.TemplateSelectors{
			InfrastructureTemplateSelectors: []v1alpha1.InfrastructureTemplateSelector{{APIGroup: gvk.Group, Kind: gvk.Kind}},
		},
		Bootstrap: &v1alpha1.Bootstrap{ConfigTemplateRef: &v1alpha1.BootstrapTemplateReference{
			APIGroup: bootstrap.GroupVersionKind().Group, Kind: bootstrap.GetKind(), Name: bootstrap.GetName(),
		}},
	})
	if err == nil && len(found) != 1 {
		err = errors.New("it isn't found among the templates")
	}
	return err
}

// checkPatches parses the patches of bootstrap configs.
func checkPatches(object *unstructured.Unstructured) error {
	var patches []v1alpha1.BootstrapPatches
	switch object.GetKind() {
	case "HostedCluster":
		hostedCluster := &v1beta1.HostedCluster{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, hostedCluster); err != nil {
			return err
		}
		if clusterAPI := clusterAPIOf(hostedCluster); clusterAPI != nil {
			patches = clusterAPI.BootstrapPatches
		}
	default:
		nodeClass := &v1alpha1.ClusterAPINodeClass{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, nodeClass); err != nil {
			return err
		}
		patches = nodeClass.Spec.BootstrapPatches
	}
	for _, of := range patches {
		if _, err := patch.Parse(of.Patches); err != nil {
			return fmt.Errorf("patches of %s: %w", of.Kind, err)
		}
	}
	return nil
}

func clusterAPIOf(hostedCluster *v1beta1.HostedCluster) *v1beta1.ClusterAPI {
	if hostedCluster.Spec.AutoNode == nil || hostedCluster.Spec.AutoNode.ProvisionerConfig.Karpenter == nil {
		return nil
	}
	return hostedCluster.Spec.AutoNode.ProvisionerConfig.Karpenter.ClusterAPI
}

// leadsToNode checks that the objects of a page fit together: Karpenter would launch a machine for the page's NodePool and workload.
func (s shown) leadsToNode(ctx context.Context) error {
	var hostedClusters, nodePools, workloads int
	for _, object := range s.Objects {
		switch object.GetKind() {
		case "NodePool":
			nodePools++
		case "Deployment":
			workloads++
		case "HostedCluster":
			hostedClusters++
			if err := s.hosts(ctx, object); err != nil {
				return err
			}
		}
	}
	if hostedClusters == 0 || nodePools == 0 || workloads == 0 {
		return fmt.Errorf("it shows %d HostedClusters, %d NodePools and %d Deployments", hostedClusters, nodePools, workloads)
	}
	return nil
}

// hosts checks what a HostedCluster refers to.
func (s shown) hosts(ctx context.Context, object *unstructured.Unstructured) error {
	hostedCluster := &v1beta1.HostedCluster{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, hostedCluster); err != nil {
		return err
	}
	namespace := hostedCluster.ControlPlaneNamespace()
	name := hostedCluster.Spec.InfraID
	if name == "" {
		name = hostedCluster.Name
	}
	var within shown
	consents, exists := false, false
	consent := client.ObjectKeyFromObject(hostedCluster).String()
	for _, each := range s.Objects {
		named := each.GetAnnotations()[v1beta1.ConsentAnnotation] == consent
		switch kind := each.GetKind(); {
		case kind == "Namespace" && each.GetName() == namespace:
			consents = consents || named
		case each.GetNamespace() == namespace:
			within.Objects = append(within.Objects, each)
			if kind == "Cluster" && each.GetName() == name {
				exists, consents = true, consents || named
			}
		}
	}
	if !exists {
		return fmt.Errorf("HostedCluster %s means Cluster %s/%s, which the page doesn't show", consent, namespace, name)
	}
	if !consents {
		return fmt.Errorf("neither Namespace %s nor its Cluster has the annotation %s: %s", namespace, v1beta1.ConsentAnnotation, consent)
	}
	clusterAPI := clusterAPIOf(hostedCluster)
	if clusterAPI == nil {
		return nil
	}
	templates, err := within.resolve(ctx, name, v1alpha1.ClusterAPINodeClassSpec{
		TemplateSelectors: clusterAPI.TemplateSelectors, Bootstrap: clusterAPI.Bootstrap, Kubelet: clusterAPI.Kubelet, BootstrapPatches: clusterAPI.BootstrapPatches,
	})
	if err != nil {
		return err
	}
	if len(templates) == 0 {
		return errors.New("there is no template among the page's objects that Karpenter would use")
	}
	for i := range templates {
		if !templates[i].Bootstrap.IsDefined() {
			return fmt.Errorf("%s has no bootstrap", templates[i].Source)
		}
		_, err := machine.Example(&v1alpha1.ClusterAPINodeClass{
			ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DefaultNodeClass},
			Spec:       v1alpha1.ClusterAPINodeClassSpec{Kubelet: clusterAPI.Kubelet, BootstrapPatches: clusterAPI.BootstrapPatches},
		}, &templates[i], machine.Chosen{ClusterName: name, Version: "1.36.3", CapacityType: "on-demand"})
		if err != nil {
			return fmt.Errorf("%s: %w", templates[i].Source, err)
		}
		if templates[i].Capacity.Name(corev1.ResourceEphemeralStorage, "").IsZero() {
			return fmt.Errorf("%s reports no ephemeral storage, so that no pod that requests some gets a node", templates[i].Source)
		}
	}
	return nil
}
