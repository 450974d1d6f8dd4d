// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"context"
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

// following reads MachineDeployments unless it fails, and reports new ones.
type following struct {
	deployments
	err     error
	observe func(schema.GroupKind, *unstructured.Unstructured)
}

func (f *following) List(ctx context.Context, kind schema.GroupKind, selector labels.Selector) ([]*unstructured.Unstructured, error) {
	if f.err != nil {
		return nil, f.err
	}
	return f.deployments.List(ctx, kind, selector)
}

func (f *following) OnObject(observe func(schema.GroupKind, *unstructured.Unstructured)) {
	f.observe = observe
}

func TestKinds(t *testing.T) {
	fleet := environment.NewFleet(t, 0, 1)
	first, second := environment.TestMachine, environment.TestMachine
	first.Kind, second.Kind = "FirstMachine", "SecondMachine"
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{environment.TestMachine.GroupVersion()})
	for _, kind := range []schema.GroupVersionKind{first, second} {
		mapper.Add(kind, meta.RESTScopeNamespace)
	}
	objects := &following{deployments: deployments{deployment("one", first.Kind)}, err: errors.New("forbidden")}
	kinds := machine.NewKinds(machine.KindsConfig{Guest: fleet.Guest, Objects: objects, Mapper: mapper})
	NewWithT(t).Expect(kinds.Watch(t.Context(), fleet.ManagementCache)).To(Succeed())
	for _, step := range []struct {
		name string
		do   func()
		want []schema.GroupVersionKind
	}{
		{"When nothing can be read, it should find nothing", func() {}, nil},
		{"When MachineDeployments can be read, it should find the kinds of their machines", func() { objects.err = nil }, []schema.GroupVersionKind{first}},
		{"When another one comes, it should find its kind too", func() {
			objects.observe(schema.GroupKind{Group: clusterv1.GroupVersion.Group, Kind: "MachineDeployment"}, deployment("two", second.Kind))
		}, []schema.GroupVersionKind{first, second}},
		{"When one refers to a kind that isn't served, it should leave that out", func() {
			objects.observe(schema.GroupKind{Group: clusterv1.GroupVersion.Group, Kind: "MachineDeployment"}, deployment("three", "Unserved"))
		}, []schema.GroupVersionKind{first, second}},
	} {
		t.Run(step.name, func(t *testing.T) {
			step.do()
			NewWithT(t).Expect(kinds.List(t.Context())).To(BeComparableTo(step.want))
		})
	}
}

func TestDeletionInFleet(t *testing.T) {
	read := map[int]int64{}
	for _, count := range []int{10, 1_000} {
		fleet := environment.NewFleet(t, count, count/5)
		provider := deleting(t, fleet)
		nodeClaim := environment.FleetNodeClaim(count)
		NewWithT(t).Expect(provider.Delete(t.Context(), &nodeClaim)).To(MatchError(machine.ErrNotFound))
		read[count] = fleet.Management.Read.Load() + fleet.Guest.Read.Load()
		t.Run("When Machines refer to kinds, it should find the kinds", func(t *testing.T) {
			want := []schema.GroupVersionKind{environment.KubeadmConfig, environment.TestMachine}
			NewWithT(t).Expect(provider.ChildKinds(t.Context())).To(BeComparableTo(want))
		})
	}
	t.Run("When a deletion completes in a larger fleet, it should read no more objects", func(t *testing.T) {
		NewWithT(t).Expect(read[10]).To(Equal(read[1_000]))
	})
}
