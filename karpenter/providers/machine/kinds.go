// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/informer"
)

// KindsConfig configures Kinds.
type KindsConfig struct {
	// Guest reads node classes from the cache.
	Guest client.Reader
	// Objects reads MachineDeployments from the cache.
	Objects ObjectWatcher
	// Mapper has the versions of the management cluster's kinds.
	Mapper meta.RESTMapper
}

// Kinds finds the kinds of infrastructure machines and bootstrap configs: those that node classes name, those of
// MachineDeployments that may be selected, and those that Machines refer to. It remembers the latter two as watches
// report them, because every completed deletion of a NodeClaim requests the kinds.
type Kinds struct {
	KindsConfig
	// synced is closed once Watch has reported every Machine that existed at startup.
	synced <-chan struct{}

	mu sync.Mutex
	// referred only grows: objects may be left after the last Machine of their kind.
	referred sets.Set[schema.GroupKind]
	// listed: the MachineDeployments that existed have been read. Later ones are watched.
	listed bool
}

// ObjectWatcher reads and follows objects of one kind in the control-plane namespace; *informer.Set does.
type ObjectWatcher interface {
	List(ctx context.Context, kind schema.GroupKind, selector labels.Selector) ([]*unstructured.Unstructured, error)
	// OnObject calls f with every added, changed or deleted object of a kind that List has read.
	OnObject(f func(kind schema.GroupKind, object *unstructured.Unstructured))
}

var machineDeployment = schema.GroupKind{Group: clusterv1.GroupVersion.Group, Kind: "MachineDeployment"}

// NewKinds returns one that has only the node classes' kinds: see Watch.
func NewKinds(config KindsConfig) *Kinds {
	return &Kinds{KindsConfig: config, referred: sets.New[schema.GroupKind]()}
}

// Watch follows the Machines in the management cluster's cache, and MachineDeployments. Call it once, before List.
func (k *Kinds) Watch(ctx context.Context, management cache.Cache) error {
	registration, err := informer.Watch(ctx, management, &clusterv1.Machine{}, func(m *clusterv1.Machine) {
		k.refer(m.Spec.InfrastructureRef.GroupKind(), m.Spec.Bootstrap.ConfigRef.GroupKind())
	}, func(*clusterv1.Machine) {})
	if err != nil {
		return err
	}
	k.synced = registration.HasSyncedChecker().Done()
	k.Objects.OnObject(func(kind schema.GroupKind, object *unstructured.Unstructured) {
		if kind == machineDeployment {
			k.refer(deployedKinds(object)...)
		}
	})
	return nil
}

// refer adds the kinds of objects that something refers to.
func (k *Kinds) refer(kinds ...schema.GroupKind) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, kind := range kinds {
		insert(k.referred, kind.Group, kind.Kind)
	}
}

// insert adds the kind of the objects that are cloned from a template, or the kind itself.
func insert(kinds sets.Set[schema.GroupKind], group, kind string) {
	if group != "" && kind != "" {
		kinds.Insert(schema.GroupKind{Group: group, Kind: strings.TrimSuffix(kind, clusterv1.TemplateSuffix)})
	}
}

// deployedKinds are the kinds of templates that a MachineDeployment refers to.
func deployedKinds(deployment *unstructured.Unstructured) (kinds []schema.GroupKind) {
	for _, path := range [][]string{
		{"spec", "template", "spec", "infrastructureRef"},
		{"spec", "template", "spec", "bootstrap", "configRef"},
	} {
		ref, _, _ := unstructured.NestedStringMap(deployment.Object, path...)
		kinds = append(kinds, schema.GroupKind{Group: ref["apiGroup"], Kind: ref["kind"]})
	}
	return kinds
}

// List returns the kinds, in the version that the API server prefers. It logs and leaves out kinds that it can't read.
func (k *Kinds) List(ctx context.Context) []schema.GroupVersionKind {
	groupKinds := k.referredKinds(ctx)
	nodeClasses := &v1alpha1.ClusterAPINodeClassList{}
	if err := k.Guest.List(ctx, nodeClasses, client.UnsafeDisableDeepCopy); err != nil {
		log.FromContext(ctx).Error(err, "listing node classes")
	}
	for i := range nodeClasses.Items {
		spec := &nodeClasses.Items[i].Spec
		for _, selector := range spec.InfrastructureTemplateSelectors {
			insert(groupKinds, selector.APIGroup, selector.Kind)
		}
		if spec.Bootstrap != nil && spec.Bootstrap.ConfigTemplateRef != nil {
			insert(groupKinds, spec.Bootstrap.ConfigTemplateRef.APIGroup, spec.Bootstrap.ConfigTemplateRef.Kind)
		}
	}
	var kinds []schema.GroupVersionKind
	byName := func(a, b schema.GroupKind) int { return strings.Compare(a.String(), b.String()) }
	for _, gk := range slices.SortedFunc(maps.Keys(groupKinds), byName) {
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

// referredKinds returns a copy of the kinds that Machines and MachineDeployments refer to.
func (k *Kinds) referredKinds(ctx context.Context) sets.Set[schema.GroupKind] {
	select {
	case <-k.synced:
	case <-ctx.Done():
	}
	k.mu.Lock()
	listed := k.listed
	k.mu.Unlock()
	if !listed {
		deployments, err := k.Objects.List(ctx, machineDeployment, labels.Everything())
		if err != nil {
			log.FromContext(ctx).V(1).Info("listing MachineDeployments", "error", err.Error())
		}
		for _, deployment := range deployments {
			k.refer(deployedKinds(deployment)...)
		}
		listed = err == nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.listed = k.listed || listed
	return k.referred.Clone()
}
