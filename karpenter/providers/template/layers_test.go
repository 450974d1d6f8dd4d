// SPDX-License-Identifier: Apache-2.0

package template

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/autonode-io/autonode/catalog"
	"github.com/autonode-io/autonode/karpenter/providers/profile"
)

func TestGPUOfLayers(t *testing.T) {
	// read reads an infrastructure template and a MachineDeployment that have these annotations.
	read := func(template, deployment map[string]string) (*Template, *InvalidError) {
		below := annotated(template)
		above := &unstructured.Unstructured{}
		above.SetGroupVersionKind(MachineDeploymentKind.WithVersion("v1beta2"))
		above.SetName("workers")
		above.SetAnnotations(deployment)
		s := &Template{Source: sourceOf(above)}
		return s, s.read(Config{Profiles: profile.Embedded()}.infrastructure(below), layer{object: above})
	}
	for name, tc := range map[string]struct {
		template, deployment map[string]string
		want                 map[string]int64
	}{
		"When the template declares the type and the MachineDeployment the number, it should put them together": {
			map[string]string{gpuTypeAnnotation: "nvidia.com/gpu"}, map[string]string{gpuCountAnnotation: "2"}, map[string]int64{"nvidia.com/gpu": 2},
		},
		"When the template declares the number and the MachineDeployment the type, it should put them together": {
			map[string]string{gpuCountAnnotation: "2"}, map[string]string{gpuTypeAnnotation: "nvidia.com/gpu"}, map[string]int64{"nvidia.com/gpu": 2},
		},
		"When both declare both, it should take the MachineDeployment's and nothing of the template's": {
			map[string]string{gpuTypeAnnotation: "nvidia.com/gpu", gpuCountAnnotation: "2"},
			map[string]string{gpuTypeAnnotation: "amd.com/gpu", gpuCountAnnotation: "1"}, map[string]int64{"amd.com/gpu": 1},
		},
		"When the MachineDeployment declares that there are none, it should have none": {
			map[string]string{gpuTypeAnnotation: "nvidia.com/gpu", gpuCountAnnotation: "2"}, map[string]string{gpuCountAnnotation: "0"}, map[string]int64{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, invalid := read(tc.template, tc.deployment)
			NewWithT(t).Expect(invalid).To(BeNil())
			got := map[string]int64{}
			for resource, quantity := range s.Capacity {
				if catalog.IsDevice(resource) {
					got[string(resource)] = quantity.Value()
				}
			}
			NewWithT(t).Expect(got).To(BeComparableTo(tc.want))
		})
	}
	t.Run("When the number lacks a type, it should name the object that has the number", func(t *testing.T) {
		_, invalid := read(map[string]string{gpuCountAnnotation: "2"}, nil)
		if invalid == nil || !strings.Contains(invalid.Error(), "MachineDeployment /workers: TestMachineTemplate clusters-blue/") {
			t.Errorf("got %v", invalid)
		}
		_, invalid = read(nil, map[string]string{gpuCountAnnotation: "2"})
		if invalid == nil || strings.Contains(invalid.Error(), "TestMachineTemplate") {
			t.Errorf("got %v", invalid)
		}
	})
}
