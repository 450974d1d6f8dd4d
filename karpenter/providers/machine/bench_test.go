// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

// nothing is an API server that has no object.
type nothing struct{ client.Reader }

func (nothing) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

// deployments are MachineDeployments that never change.
type deployments []*unstructured.Unstructured

func (d deployments) List(context.Context, schema.GroupKind, labels.Selector) ([]*unstructured.Unstructured, error) {
	return d, nil
}

func (deployments) OnObject(func(schema.GroupKind, *unstructured.Unstructured)) {}

// deployment is a MachineDeployment whose machines have infrastructure of a kind.
func deployment(name, kind string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": name},
		"spec": map[string]any{"template": map[string]any{"spec": map[string]any{
			"infrastructureRef": map[string]any{"apiGroup": environment.TestMachine.Group, "kind": kind + "Template", "name": "c4"},
			"bootstrap": map[string]any{"configRef": map[string]any{
				"apiGroup": environment.KubeadmConfig.Group, "kind": environment.KubeadmConfig.Kind + "Template", "name": "default",
			}},
		}}},
	}}
}

// deleting is a provider in a fleet with as many MachineDeployments as it has sources.
func deleting(tb testing.TB, f *environment.Fleet) *machine.Provider {
	tb.Helper()
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{environment.TestMachine.GroupVersion(), environment.KubeadmConfig.GroupVersion()})
	for _, kind := range []schema.GroupVersionKind{environment.TestMachine, environment.KubeadmConfig} {
		mapper.Add(kind, meta.RESTScopeNamespace)
	}
	var objects deployments
	for i := range f.Sources {
		objects = append(objects, deployment(fmt.Sprintf("d-%d", i), environment.TestMachine.Kind))
	}
	kinds := machine.NewKinds(machine.KindsConfig{Guest: f.Guest, Objects: objects, Mapper: mapper})
	if err := kinds.Watch(tb.Context(), f.ManagementCache); err != nil {
		tb.Fatal(err)
	}
	return machine.New(machine.Config{
		Management: f.Management, Live: nothing{}, Namespace: environment.FleetNamespace, ClusterName: environment.FleetCluster, ChildKinds: kinds.List,
	})
}

// BenchmarkDelete completes the deletion of a NodeClaim whose Machine is gone: as fast in a fleet of 5,000 Machines and
// 1,000 MachineDeployments as in one of 500 and 100.
func BenchmarkDelete(b *testing.B) {
	for _, count := range []int{500, 5_000} {
		b.Run(fmt.Sprintf("machines=%d", count), func(b *testing.B) {
			provider := deleting(b, environment.NewFleet(b, count, count/5))
			nodeClaim := environment.FleetNodeClaim(count)
			b.ReportAllocs()
			for b.Loop() {
				if err := provider.Delete(b.Context(), &nodeClaim); !errors.Is(err, machine.ErrNotFound) {
					b.Fatal(err)
				}
			}
		})
	}
}
