// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/autonode-io/autonode/catalog"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

func TestDevices(t *testing.T) {
	with := func(name string, devices ...catalog.Devices) template.Template {
		return newTemplate(name, 4, 0.1, func(s *template.Template) { s.InstanceType, s.Devices = "g4", devices })
	}
	of := func(driver string, count int, model string) catalog.Devices {
		return catalog.Devices{
			Driver: driver, Count: count,
			Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"model": {StringValue: ptr.To(model)}},
			Capacity:   map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: resource.MustParse("80Gi")}},
		}
	}
	const nvidia, amd = "gpu.nvidia.com", "gpu.amd.com"
	for _, tc := range []struct {
		name      string
		templates []template.Template
		want      []string // each as <driver> <pool> <device> <model> <memory>
	}{
		{
			"When a template has devices of a DRA driver, it should promise those",
			[]template.Template{with("a", of(nvidia, 2, "l40s"))},
			[]string{"gpu.nvidia.com g4 device-0 l40s 80Gi", "gpu.nvidia.com g4 device-1 l40s 80Gi"},
		}, {
			"When a template has devices of several kinds and drivers, it should promise all, each driver's in one slice",
			[]template.Template{with("a", of(nvidia, 1, "l40s"), of(amd, 1, "mi300"), of(nvidia, 1, "h100"))},
			[]string{"gpu.nvidia.com g4 device-0 l40s 80Gi", "gpu.nvidia.com g4 device-1 h100 80Gi", "gpu.amd.com g4 device-0 mi300 80Gi"},
		}, {
			"When templates of one type have different numbers, it should promise the least",
			[]template.Template{with("a", of(nvidia, 4, "l40s")), with("b", of(nvidia, 1, "l40s"))},
			[]string{"gpu.nvidia.com g4 device-0 l40s 80Gi"},
		},
		{"When templates of one type have different drivers, it should promise none", []template.Template{with("a", of(nvidia, 4, "l40s")), with("b", of(amd, 4, "l40s"))}, nil},
		{"When templates of one type have different models, it should promise none", []template.Template{with("a", of(nvidia, 4, "l40s")), with("b", of(nvidia, 4, "h100"))}, nil},
		{"When one of them has none, it should promise none", []template.Template{with("a", of(nvidia, 4, "l40s")), with("b")}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := fmt.Sprintf("%v", tc.templates[0].Devices)
			var got []string
			for _, slice := range snapshotOf(input(tc.templates...)).InstanceTypes[0].DynamicResources.ResourceSliceTemplates {
				for _, device := range slice.Devices {
					memory := device.Capacity["memory"]
					got = append(got, fmt.Sprintf("%s %s %s %s %s", slice.Driver.Value(), slice.Pool.Name.Value(), device.Name.Value(),
						*device.Attributes["model"].StringValue, memory.Value.String()))
				}
			}
			NewWithT(t).Expect(got).To(BeComparableTo(tc.want))
			if after := fmt.Sprintf("%v", tc.templates[0].Devices); after != before {
				t.Errorf("the template, which is shared, is now %s", after)
			}
		})
	}
}
