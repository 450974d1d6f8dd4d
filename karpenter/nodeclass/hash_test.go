// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/instancetype"
	"github.com/autonode-io/autonode/karpenter/pricing"
	"github.com/autonode-io/autonode/karpenter/shape"
)

func TestShapesHash(t *testing.T) {
	// Both make the same offering, which is made from the cheaper one.
	hash := func(change func(cheap, dear *shape.Shape)) string {
		shapes := make([]shape.Shape, 2)
		for i, name := range []string{"cheap", "dear"} {
			shapes[i] = shape.Shape{
				Source: shape.Source{Name: name}, ContentHash: name, InstanceType: "c4", Arch: "amd64", OS: "linux", Price: ptr.To(float64(i + 1)),
				Bootstrap: shape.Bootstrap{DataSecretName: "join", Hash: "join"},
				Capacity:  corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi")},
			}
		}
		change(&shapes[0], &shapes[1])
		return shapesHash(instancetype.Build(instancetype.Input{Shapes: shapes, Pricing: pricing.Default()}), func(*shape.Shape) string { return "" })
	}
	base := hash(func(_, _ *shape.Shape) {})
	t.Run("When another shape makes the offering because the cheaper one can't be had, it should stay", func(t *testing.T) {
		if got := hash(func(cheap, _ *shape.Shape) { cheap.Paused = true }); got != base {
			t.Errorf("got %s, want %s", got, base)
		}
	})
	t.Run("When the content of a shape changes that makes no offering now, it should change: there may be nodes of it", func(t *testing.T) {
		if got := hash(func(_, dear *shape.Shape) { dear.ContentHash = "2" }); got == base {
			t.Errorf("it stays %s", got)
		}
	})
}

func TestHashIsStable(t *testing.T) {
	t.Run("When a node class is the same, its hash should be the same for ever; otherwise raise HashVersion", func(t *testing.T) {
		nodeClass := &v1alpha1.ClusterAPINodeClass{}
		nodeClass.Spec.Kubelet = &v1alpha1.KubeletConfiguration{MaxPods: ptr.To[int32](20)}
		nodeClass.Spec.BootstrapPatches = []v1alpha1.BootstrapPatches{{
			APIGroup: "bootstrap.cluster.x-k8s.io", Kind: "AnyConfig", Patches: []v1alpha1.BootstrapPatch{{Path: "/spec/a", Value: "$(TaintList)"}},
		}}
		if got, want := HashVersion+" "+Hash(nodeClass), "v1 880e60f707bb3fc3"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}
