// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/cloudprovider"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

const benchNamespace, benchCluster = "clusters-blue", "blue"

// listed is what an API server would list; nothing changes.
type listed struct{ *clusterv1.MachineList }

func (l listed) List(metav1.ListOptions) (runtime.Object, error) { return l.MachineList, nil }
func (listed) Watch(metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil }
func (listed) IsWatchListSemanticsUnSupported() bool             { return true }

// machines is a provider whose cache, the real one, holds that many Machines.
func machines(b *testing.B, count int) *machine.Provider {
	b.Helper()
	list := &clusterv1.MachineList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
	for i := range count {
		list.Items = append(list.Items, clusterv1.Machine{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: benchNamespace, Name: fmt.Sprintf("general-%d", i), UID: types.UID(fmt.Sprintf("m-%d", i)), ResourceVersion: "1",
				Labels: map[string]string{
					clusterv1.ClusterNameLabel:     benchCluster,
					v1alpha1.NodeClaimLabel:        fmt.Sprintf("general-%d", i),
					v1alpha1.NodeClaimUIDLabel:     fmt.Sprintf("uid-%d", i),
					karpv1.NodePoolLabelKey:        "general",
					karpv1.CapacityTypeLabelKey:    "spot",
					corev1.LabelInstanceTypeStable: "c4-large",
					corev1.LabelTopologyZone:       "a",
				},
			},
			Spec: clusterv1.MachineSpec{ClusterName: benchCluster, ProviderID: fmt.Sprintf("cloud://%d", i)},
		})
	}
	scheme := runtime.NewScheme()
	if err := clusterv1.AddToScheme(scheme); err != nil {
		b.Fatal(err)
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"Machine", "MachineList"} {
		mapper.Add(clusterv1.GroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	config := &rest.Config{Host: "https://nowhere.invalid"}
	management, err := cache.New(config, cache.Options{
		Scheme: scheme, Mapper: mapper,
		DefaultNamespaces: map[string]cache.Config{benchNamespace: {}},
		NewInformer: func(_ toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
			return toolscache.NewSharedIndexInformer(listed{list}, object, resync, indexers)
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	if err := machine.Index(b.Context(), management); err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	b.Cleanup(stop)
	go func() { _ = management.Start(ctx) }()
	if !management.WaitForCacheSync(ctx) {
		b.Fatal("waiting for the cache")
	}
	reader, err := client.New(config, client.Options{Scheme: scheme, Mapper: mapper, Cache: &client.CacheOptions{Reader: management}})
	if err != nil {
		b.Fatal(err)
	}
	return machine.New(machine.Config{Management: reader, Namespace: benchNamespace, ClusterName: benchCluster})
}

// BenchmarkGet finds a Machine by its provider ID: as fast among 10,000 as among 100.
func BenchmarkGet(b *testing.B) {
	for _, count := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("machines=%d", count), func(b *testing.B) {
			provider := cloudprovider.New(cloudprovider.Config{Machines: machines(b, count)})
			id := fmt.Sprintf("cloud://%d", count/2)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := provider.Get(b.Context(), id); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkForNodeClaim finds a NodeClaim's Machine: as fast among 10,000 as among 100.
func BenchmarkForNodeClaim(b *testing.B) {
	for _, count := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("machines=%d", count), func(b *testing.B) {
			provider := machines(b, count)
			uid := types.UID(fmt.Sprintf("uid-%d", count/2))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := provider.ForNodeClaim(b.Context(), uid); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkList lists every machine, as Karpenter's garbage collection does.
func BenchmarkList(b *testing.B) {
	const count = 5_000
	provider := cloudprovider.New(cloudprovider.Config{Machines: machines(b, count)})
	b.ReportAllocs()
	for b.Loop() {
		found, err := provider.List(b.Context())
		if err != nil || len(found) != count {
			b.Fatalf("listed %d: %v", len(found), err)
		}
	}
}
