// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
)

// Kinds finds the kinds of infrastructure machines and bootstrap configs: those that node classes name, those of
// MachineDeployments that may be selected, and those that Machines refer to.
type Kinds struct {
	// Guest reads node classes from the cache.
	Guest client.Reader
	// Management reads Machines from the cache.
	Management client.Reader
	// Objects reads MachineDeployments from the cache.
	Objects ObjectLister
	// Mapper knows the versions of the management cluster's kinds.
	Mapper    meta.RESTMapper
	Namespace string
}

// ObjectLister lists objects of one kind in the control-plane namespace; *informer.Set does.
type ObjectLister interface {
	List(ctx context.Context, kind schema.GroupKind, selector labels.Selector) ([]*unstructured.Unstructured, error)
}

var machineDeployment = schema.GroupKind{Group: clusterv1.GroupVersion.Group, Kind: "MachineDeployment"}

// List returns the kinds, in the version that the API server prefers. It logs and leaves out kinds that it can't read.
func (k Kinds) List(ctx context.Context) []schema.GroupVersionKind {
	groupKinds := sets.New[schema.GroupKind]()
	cloned := func(group, kind string) {
		if group != "" && kind != "" {
			groupKinds.Insert(schema.GroupKind{Group: group, Kind: strings.TrimSuffix(kind, clusterv1.TemplateSuffix)})
		}
	}
	nodeClasses := &v1alpha1.ClusterAPINodeClassList{}
	if err := k.Guest.List(ctx, nodeClasses, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "listing node classes")
	}
	for _, nodeClass := range nodeClasses.Items {
		for _, selector := range nodeClass.Spec.InfrastructureTemplateSelectors {
			cloned(selector.APIGroup, selector.Kind)
		}
		if bootstrap := nodeClass.Spec.Bootstrap; bootstrap != nil && bootstrap.ConfigTemplateRef != nil {
			cloned(bootstrap.ConfigTemplateRef.APIGroup, bootstrap.ConfigTemplateRef.Kind)
		}
	}
	deployments, err := k.Objects.List(ctx, machineDeployment, labels.Everything())
	if err != nil {
		log.FromContext(ctx).V(1).Info("listing MachineDeployments", "error", err.Error())
	}
	for _, deployment := range deployments {
		for _, path := range [][]string{
			{"spec", "template", "spec", "infrastructureRef"},
			{"spec", "template", "spec", "bootstrap", "configRef"},
		} {
			ref, _, _ := unstructured.NestedStringMap(deployment.Object, path...)
			cloned(ref["apiGroup"], ref["kind"])
		}
	}
	machines := &clusterv1.MachineList{}
	if err := k.Management.List(ctx, machines, client.InNamespace(k.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "listing Machines")
	}
	for i := range machines.Items {
		spec := &machines.Items[i].Spec
		cloned(spec.InfrastructureRef.APIGroup, spec.InfrastructureRef.Kind)
		cloned(spec.Bootstrap.ConfigRef.APIGroup, spec.Bootstrap.ConfigRef.Kind)
	}
	var kinds []schema.GroupVersionKind
	for gk := range groupKinds {
		mapping, err := k.Mapper.RESTMapping(gk)
		if err != nil {
			// A kind that isn't served has no objects either.
			log.FromContext(ctx).V(1).Info("kind isn't served by the management cluster", "kind", gk.String(), "error", err.Error())
			continue
		}
		kinds = append(kinds, mapping.GroupVersionKind)
	}
	return kinds
}
