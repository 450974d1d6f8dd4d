// SPDX-License-Identifier: Apache-2.0

package catalog

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/blang/semver/v4"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/message"
)

// MaxDevices of one driver: the capacity of a ResourceSlice.
const MaxDevices = resourcev1.ResourceSliceMaxDevices

// Devices are identical devices that a DRA driver publishes for a node. They are shared: don't modify them.
type Devices struct {
	Driver     string
	Count      int
	Attributes map[resourcev1.QualifiedName]resourcev1.DeviceAttribute
	Capacity   map[resourcev1.QualifiedName]resourcev1.DeviceCapacity
}

// DriverProblem returns why a text can't be the name of a DRA driver; empty if it can.
func DriverProblem(name string) string {
	if len(name) > resourcev1.DriverNameMaxLength || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return "is not the name of a DRA driver, such as gpu.nvidia.com"
	}
	return ""
}

func (t *Type) readDevices(all []v1alpha1.CatalogDevices) (problem string) {
	counts := map[string]int{}
	for i := range all {
		devices, problem := readDevices(&all[i])
		if problem != "" {
			return fmt.Sprintf("devices[%d].%s", i, problem)
		}
		if counts[devices.Driver] += devices.Count; counts[devices.Driver] > MaxDevices {
			return fmt.Sprintf("devices[%d].count: %d devices of driver %s exceed the limit of %d", i, counts[devices.Driver],
				devices.Driver, MaxDevices)
		}
		t.Devices = append(t.Devices, devices)
	}
	return ""
}

func readDevices(entry *v1alpha1.CatalogDevices) (devices Devices, problem string) {
	if problem := DriverProblem(entry.Driver); problem != "" {
		return devices, fmt.Sprintf("driver: %q %s", message.Cut(entry.Driver, maxShown), problem)
	}
	if entry.Count < 1 || entry.Count > MaxDevices {
		return devices, fmt.Sprintf("count: %d is not a number of devices from 1 to %d", entry.Count, MaxDevices)
	}
	devices = Devices{Driver: entry.Driver, Count: int(entry.Count)}
	for _, name := range slices.Sorted(maps.Keys(entry.Attributes)) {
		if !isDeviceName(name) {
			return devices, fmt.Sprintf("attributes: %q is not the name of an attribute, such as model or example.com/model",
				message.Cut(name, maxShown))
		}
		value := entry.Attributes[name]
		if problem := attributeProblem(&value); problem != "" {
			return devices, fmt.Sprintf("attributes.%s: %s", name, problem)
		}
		if devices.Attributes == nil {
			devices.Attributes = map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{}
		}
		devices.Attributes[resourcev1.QualifiedName(name)] = resourcev1.DeviceAttribute{
			StringValue: value.String, VersionValue: value.Version, BoolValue: value.Bool, IntValue: value.Int,
		}
	}
	for _, name := range slices.Sorted(maps.Keys(entry.Capacity)) {
		if !isDeviceName(name) {
			return devices, fmt.Sprintf("capacity: %q is not the name of a capacity, such as memory or example.com/memory",
				message.Cut(name, maxShown))
		}
		value := entry.Capacity[name]
		quantity, problem := quantityOf(value)
		if problem != "" {
			return devices, fmt.Sprintf("capacity.%s: %q %s", name, message.Cut(value.String(), maxShown), problem)
		}
		if devices.Capacity == nil {
			devices.Capacity = map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{}
		}
		devices.Capacity[resourcev1.QualifiedName(name)] = resourcev1.DeviceCapacity{Value: quantity}
	}
	return devices, ""
}

// isDeviceName is the API server's rule for names of attributes and capacities: an identifier of C, with or without a domain.
func isDeviceName(name string) bool {
	domain, identifier, qualified := strings.Cut(name, "/")
	if !qualified {
		domain, identifier = "", name
	}
	return len(identifier) <= resourcev1.DeviceMaxIDLength && len(validation.IsCIdentifier(identifier)) == 0 &&
		(!qualified || len(domain) <= resourcev1.DeviceMaxDomainLength && len(validation.IsDNS1123Subdomain(domain)) == 0)
}

func attributeProblem(value *v1alpha1.CatalogDeviceAttribute) string {
	set := 0
	for _, is := range []bool{value.String != nil, value.Version != nil, value.Bool != nil, value.Int != nil} {
		if is {
			set++
		}
	}
	switch {
	case set != 1:
		return "exactly one of string, version, bool and int has to be set"
	case value.String != nil && len(*value.String) > resourcev1.DeviceAttributeMaxValueLength:
		return fmt.Sprintf("string has more than %d characters", resourcev1.DeviceAttributeMaxValueLength)
	case value.Version != nil:
		if _, err := semver.Parse(*value.Version); err != nil || len(*value.Version) > resourcev1.DeviceAttributeMaxValueLength {
			return fmt.Sprintf("version: %q is not a semantic version, such as 1.2.3", message.Cut(*value.Version, maxShown))
		}
	}
	return ""
}
