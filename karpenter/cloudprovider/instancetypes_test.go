// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	"github.com/autonode-io/autonode/karpenter/cloudprovider"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/pricing"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// manyInstanceTypes is a provider, with everything that availability depends on, whose node class offers 700 instance types in
// 3 zones as 2 capacity types; one of them has a maximum. It has no clients: nothing may be read.
func manyInstanceTypes() (*cloudprovider.CloudProvider, *karpv1.NodePool) {
	templates := &environment.Templates{}
	store := instancetype.New(instancetype.Config{
		Templates:   templates,
		Pricing:     pricing.New(pricing.NewFile("testdata/no-prices.yaml")),
		Unavailable: offering.NewUnavailable(clock.RealClock{}),
		Inventory:   environment.NoMachines(),
		Capacity:    capacityprovider.Unlimited{},
	})
	offered := make([]template.Template, 700)
	for i := range offered {
		offered[i] = environment.FleetTemplate(i)
		offered[i].Labels = map[string]string{"example.com/family": fmt.Sprintf("f%d", i%7)}
	}
	offered[0].MaxSize = ptr.To(10)
	nodeClass := &v1alpha1.ClusterAPINodeClass{}
	nodeClass.Name = "default"
	templates.Offer(nodeClass.Name, offered, template.Cluster{FailureDomains: []string{"a", "b", "c"}}, template.Gaps{})
	if _, err := store.List(context.Background(), nodeClass); err != nil {
		panic(err) // what Offer said is never an error
	}
	nodePool := &karpv1.NodePool{}
	nodePool.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: "default"}
	return cloudprovider.New(cloudprovider.Config{InstanceTypes: store, Rejections: offering.NewRejections(clock.RealClock{})}), nodePool
}

// ofFamilies is a NodePool that requires one of these values of a label that only the templates give to nodes.
func ofFamilies(nodePool *karpv1.NodePool, generation int64, values ...string) *karpv1.NodePool {
	nodePool = nodePool.DeepCopy()
	nodePool.UID, nodePool.Generation = "families", generation
	nodePool.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{requirement("example.com/family", values...)}
	return nodePool
}

func TestGetInstanceTypesCost(t *testing.T) {
	provider, general := manyInstanceTypes()
	for name, nodePool := range map[string]*karpv1.NodePool{
		"all of them": general, "those with a label of the templates": ofFamilies(general, 1, "f1", "f3"),
	} {
		t.Run("When nothing has changed and a NodePool gets "+name+", it should hand them out without reading or allocating anything", func(t *testing.T) {
			if n := testing.AllocsPerRun(100, func() { _, _ = provider.GetInstanceTypes(t.Context(), nodePool) }); n != 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
	for name, generations := range map[string][]int64{"changes": {1, 2, 3}, "without a generation changes": {0, 0, 0}} {
		t.Run("When a NodePool "+name+", it should get what it requires now", func(t *testing.T) {
			for i, families := range [][]string{{"f1", "f3"}, {"f1"}, {"f1", "f2", "f3"}} {
				its, err := provider.GetInstanceTypes(t.Context(), ofFamilies(general, generations[i], families...))
				if err != nil || len(its) != 100*len(families) {
					t.Errorf("families %v: %d instance types, %v", families, len(its), err)
				}
			}
		})
	}
}

func BenchmarkGetInstanceTypes(b *testing.B) {
	provider, general := manyInstanceTypes()
	for i, nodePool := range []*karpv1.NodePool{general, ofFamilies(general, 1, "f1", "f3")} {
		b.Run([]string{"all", "with a label"}[i], func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if its, err := provider.GetInstanceTypes(b.Context(), nodePool); err != nil || len(its) < 200 {
					b.Fatal(err)
				}
			}
		})
	}
}
