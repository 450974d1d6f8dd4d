// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"testing"

	"github.com/autonode-io/autonode/karpenter/providers/template"
)

func TestDevices(t *testing.T) {
	with := func(name, driver string, devices int) template.Template {
		return newTemplate(name, 4, 0.1, func(s *template.Template) { s.InstanceType, s.DeviceDriver, s.Devices = "g4", driver, devices })
	}
	for _, tc := range []struct {
		name      string
		templates []template.Template
		want      int
	}{
		{"When a template has devices of a DRA driver, it should promise those", []template.Template{with("a", "gpu.nvidia.com", 4)}, 4},
		{"When templates of one type have different numbers, it should promise the least", []template.Template{with("a", "gpu.nvidia.com", 4), with("b", "gpu.nvidia.com", 2)}, 2},
		{"When templates of one type have different drivers, it should promise none", []template.Template{with("a", "gpu.nvidia.com", 4), with("b", "gpu.amd.com", 4)}, 0},
		{"When one of them has none, it should promise none", []template.Template{with("a", "gpu.nvidia.com", 4), with("b", "", 0)}, 0},
		{"When there is a driver without a number, it should promise none", []template.Template{with("a", "gpu.nvidia.com", 0)}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			templates := snapshotOf(input(tc.templates...)).InstanceTypes[0].DynamicResources.ResourceSliceTemplates
			if tc.want == 0 {
				if len(templates) > 0 {
					t.Errorf("%d templates", len(templates))
				}
				return
			}
			if len(templates) != 1 || templates[0].Driver.Value() != "gpu.nvidia.com" || len(templates[0].Devices) != tc.want {
				t.Fatalf("templates: %v", templates)
			}
			names := map[string]bool{}
			for _, device := range templates[0].Devices {
				names[device.Name.Value()] = true
			}
			if len(names) != tc.want {
				t.Errorf("devices: %v", names)
			}
		})
	}
}
