// SPDX-License-Identifier: Apache-2.0

package pricing

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/providers/template"
)

func sized(cpu, memory string, gpus int64) *template.Template {
	s := &template.Template{Capacity: corev1.ResourceList{
		corev1.ResourceCPU:              resource.MustParse(cpu),
		corev1.ResourceMemory:           resource.MustParse(memory),
		corev1.ResourcePods:             resource.MustParse("110"),
		corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
	}}
	if gpus > 0 {
		s.Capacity["nvidia.com/gpu"] = *resource.NewQuantity(gpus, resource.DecimalSI)
	}
	return s
}

func TestPrice(t *testing.T) {
	said := sized("2", "4Gi", 0)
	said.Price, said.SpotPrice = ptr.To(0.021), ptr.To(0.007)
	free := sized("2", "4Gi", 0)
	free.Price = ptr.To(0.0)
	for _, tc := range []struct {
		name         string
		tmpl         *template.Template
		capacityType string
		want         float64
		known        bool
	}{
		{"When the source declares a price, it should be that", said, karpv1.CapacityTypeOnDemand, 0.021, true},
		{"When the source declares a spot price, it should be that", said, karpv1.CapacityTypeSpot, 0.007, true},
		{"When the source declares that it is free, it should be free", free, karpv1.CapacityTypeOnDemand, 0, true},
		{"When the source declares nothing, it should be estimated from cores and memory", sized("2", "4Gi", 0), karpv1.CapacityTypeOnDemand, 2*CPUPrice + 4*MemoryPrice, true},
		{"When the source declares nothing about spot, it should not be known", sized("2", "4Gi", 0), karpv1.CapacityTypeSpot, 0, false},
		{"When there is nearly nothing to estimate, it should not be free", sized("1m", "1Ki", 0), karpv1.CapacityTypeOnDemand, MinimumPrice, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, known := New(NewFile("")).Price(tc.tmpl, "a", tc.capacityType)
			if known != tc.known || got-tc.want > 1e-9 || tc.want-got > 1e-9 {
				t.Errorf("got %v, %v; want %v, %v", got, known, tc.want, tc.known)
			}
		})
	}
	t.Run("When a machine is bigger in anything, it should be estimated dearer", func(t *testing.T) {
		order := []*template.Template{sized("1", "2Gi", 0), sized("2", "2Gi", 0), sized("2", "4Gi", 0), sized("4", "8Gi", 0), sized("4", "8Gi", 1), sized("4", "8Gi", 2)}
		last := 0.0
		for _, s := range order {
			price, _ := Estimate{}.Price(s, "a", karpv1.CapacityTypeOnDemand)
			if price <= last {
				t.Errorf("%v costs %v, and something smaller %v", s.Capacity, price, last)
			}
			last = price
		}
	})
}
