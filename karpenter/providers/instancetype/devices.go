// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"slices"
	"strconv"
	"unique"

	"k8s.io/apimachinery/pkg/api/equality"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/catalog"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// devicesOf returns the devices that all templates have, of each driver in one pool. Templates that differ in more than in how many they
// have promise none. Karpenter reads them unless it ignores resource claims of pods.
func devicesOf(templates []*template.Template) karpcloudprovider.DynamicResources {
	common := slices.Clone(templates[0].Devices)
	for _, tmpl := range templates[1:] {
		if len(tmpl.Devices) != len(common) {
			return karpcloudprovider.DynamicResources{}
		}
		for i := range common {
			if !alike(common[i], tmpl.Devices[i]) {
				return karpcloudprovider.DynamicResources{}
			}
			common[i].Count = min(common[i].Count, tmpl.Devices[i].Count)
		}
	}
	var slicesOf []*karpcloudprovider.ResourceSliceTemplate
	byDriver := map[string]*karpcloudprovider.ResourceSliceTemplate{}
	for _, devices := range common {
		slice := byDriver[devices.Driver]
		if slice == nil {
			slice = &karpcloudprovider.ResourceSliceTemplate{
				Driver: unique.Make(devices.Driver), Pool: karpcloudprovider.ResourcePool{Name: unique.Make(templates[0].InstanceType)},
			}
			byDriver[devices.Driver] = slice
			slicesOf = append(slicesOf, slice)
		}
		for range devices.Count {
			slice.Devices = append(slice.Devices, karpcloudprovider.Device{
				Name: unique.Make("device-" + strconv.Itoa(len(slice.Devices))), Attributes: devices.Attributes, Capacity: devices.Capacity,
			})
		}
	}
	return karpcloudprovider.DynamicResources{ResourceSliceTemplates: slicesOf}
}

// alike reports whether two kinds of devices are the same, however many there are.
func alike(a, b catalog.Devices) bool {
	return a.Driver == b.Driver && equality.Semantic.DeepEqual(a.Attributes, b.Attributes) &&
		equality.Semantic.DeepEqual(a.Capacity, b.Capacity)
}
