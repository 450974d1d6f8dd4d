// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

func TestMachineOf(t *testing.T) {
	key := offering.Key{InstanceType: "g5", Zone: "a", CapacityType: "reserved", Reservation: "cr-1"}
	named := capacity.Offering{InstanceType: "g5", Zone: "a", CapacityType: "reserved", Reservation: "cr-1"}
	ofCatalog := named
	ofCatalog.Catalog = "general"
	for name, tc := range map[string]struct {
		declared corev1.ResourceList
		catalog  string
		want     capacity.Machine
	}{
		"When a template declares nothing, it should take a machine": {nil, "", capacity.Machine{Offering: named}},
		"When a template declares its size, it should take that": {
			corev1.ResourceList{"cpu": resource.MustParse("3500m"), "memory": resource.MustParse("2Gi"), "nvidia.com/gpu": resource.MustParse("2"), "amd.com/gpu": resource.MustParse("1"), "example.com/fpga": resource.MustParse("9")}, "",
			capacity.Machine{Offering: named, VCPUs: 3500, Memory: 2 << 30, GPUs: 3},
		},
		"When a template declares nonsense, it should stay within bounds": {
			corev1.ResourceList{"cpu": resource.MustParse("-4"), "memory": resource.MustParse("8Ei"), "nvidia.com/gpu": resource.MustParse("9E"), "amd.com/gpu": resource.MustParse("9E")}, "",
			capacity.Machine{Offering: named, Memory: autonodev1alpha1.MaxCharge, GPUs: autonodev1alpha1.MaxCharge},
		},
		"When a catalog has the template, the machine should be of that": {nil, "general", capacity.Machine{Offering: ofCatalog}},
	} {
		t.Run(name, func(t *testing.T) {
			tmpl := &template.Template{Capacity: tc.declared}
			if tc.catalog != "" {
				tmpl.Source = template.Source{Name: tc.catalog, Entry: "g5"}
			}
			NewWithT(t).Expect(capacityprovider.MachineOf(key, tmpl)).To(Equal(tc.want))
		})
	}
}
