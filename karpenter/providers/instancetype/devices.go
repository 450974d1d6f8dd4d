// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"slices"
	"strconv"
	"unique"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// Names that the Cluster Autoscaler gives to the devices of its annotations.
const (
	deviceType          = "gpu"
	deviceTypeAttribute = resourcev1.QualifiedName("type")
)

// devicesOf returns the devices that all templates have, as the Cluster Autoscaler models them: identical, in one pool.
// Karpenter reads them unless it ignores resource claims of pods.
func devicesOf(templates []*template.Template) karpcloudprovider.DynamicResources {
	driver, count := templates[0].DeviceDriver, templates[0].Devices
	for _, tmpl := range templates[1:] {
		count = min(count, tmpl.Devices)
	}
	if count == 0 || slices.ContainsFunc(templates, func(tmpl *template.Template) bool { return tmpl.DeviceDriver != driver }) {
		return karpcloudprovider.DynamicResources{}
	}
	template := &karpcloudprovider.ResourceSliceTemplate{
		Driver: unique.Make(driver),
		Pool:   karpcloudprovider.ResourcePool{Name: unique.Make(templates[0].InstanceType)},
	}
	for i := range count {
		template.Devices = append(template.Devices, karpcloudprovider.Device{
			Name:       unique.Make(deviceType + "-" + strconv.Itoa(i)),
			Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{deviceTypeAttribute: {StringValue: ptr.To(deviceType)}},
		})
	}
	return karpcloudprovider.DynamicResources{ResourceSliceTemplates: []*karpcloudprovider.ResourceSliceTemplate{template}}
}
