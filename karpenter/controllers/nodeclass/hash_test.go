// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/environment"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/pricing"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

func TestTemplatesHash(t *testing.T) {
	// Both make the same offering, which is made from the cheaper one.
	hash := func(change func(cheap, dear *template.Template)) string {
		templates := make([]template.Template, 2)
		for i, name := range []string{"cheap", "dear"} {
			templates[i] = template.Template{
				Source: template.Source{Name: name}, ContentHash: name, InstanceType: "c4", Arch: "amd64", OS: "linux", Price: ptr.To(float64(i + 1)),
				Bootstrap: template.Bootstrap{DataSecretName: "join", Hash: "join"},
				Capacity:  corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi")},
			}
		}
		change(&templates[0], &templates[1])
		offered := &environment.Templates{}
		offered.Offer("default", templates, template.Cluster{}, template.Gaps{})
		listing, err := instancetype.New(instancetype.Config{
			Templates: offered, Pricing: pricing.New(pricing.NewFile("")), Inventory: environment.NoMachines(), Capacity: capacityprovider.Unlimited{},
		}).Refresh(t.Context(), &v1alpha1.ClusterAPINodeClass{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
		if err != nil {
			t.Fatal(err)
		}
		return templatesHash(listing.Snapshot, func(*template.Template) string { return "" })
	}
	base := hash(func(_, _ *template.Template) {})
	t.Run("When another template makes the offering because the cheaper one is unavailable, it should stay", func(t *testing.T) {
		if got := hash(func(cheap, _ *template.Template) { cheap.Paused = true }); got != base {
			t.Errorf("got %s, want %s", got, base)
		}
	})
	t.Run("When the content of a template changes that makes no offering now, it should change: there may be nodes of it", func(t *testing.T) {
		if got := hash(func(_, dear *template.Template) { dear.ContentHash = "2" }); got == base {
			t.Errorf("it stays %s", got)
		}
	})
}
