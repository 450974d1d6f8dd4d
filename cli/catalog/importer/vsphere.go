// SPDX-License-Identifier: Apache-2.0

package importer

import (
	"encoding/json"
	"errors"
	"fmt"

	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/catalog"
)

// vSphereClass is a VirtualMachineClass of vmoperator.vmware.com.
// https://github.com/vmware-tanzu/vm-operator/blob/main/docs/ref/api/v1alpha3.md
type vSphereClass struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		Hardware struct {
			CPUs    int64 `json:"cpus"`
			Memory  scalar.Quantity
			Devices struct {
				VGPUDevices                []json.RawMessage `json:"vgpuDevices"`
				DynamicDirectPathIODevices []struct {
					VendorID int64 `json:"vendorID"`
				} `json:"dynamicDirectPathIODevices"`
			}
		}
	}
}

// PCI vendors of GPUs: https://pci-ids.ucw.cz.
const nvidia, amd = 0x10de, 0x1002

func readVSphere(c *collector, file *source) error {
	raw, err := file.whole()
	if err != nil {
		return err
	}
	converted, err := yaml.YAMLToJSON(raw)
	if err != nil {
		return fmt.Errorf("not YAML or JSON: %w", err)
	}
	input := struct {
		Kind  string
		Items []json.RawMessage
	}{}
	if err := decode(converted, &input); err != nil {
		return fmt.Errorf("not a VirtualMachineClass or a list of them: %w", err)
	}
	switch {
	case input.Kind == "VirtualMachineClass":
		input.Items = []json.RawMessage{converted}
	case input.Items == nil:
		return errors.New("not a VirtualMachineClass or a list of them: it has no items")
	}
	add := func(where string, class *vSphereClass) error {
		where += " " + shown(class.Metadata.Name)
		if class.Kind != "" && class.Kind != "VirtualMachineClass" {
			c.problem(where, "is a %s and no VirtualMachineClass", shown(class.Kind))
			return nil
		}
		hardware := class.Spec.Hardware
		m := machine{name: class.Metadata.Name, arch: "amd64", capacityTypes: []string{catalog.OnDemand}, capacity: map[string]scalar.Quantity{
			"cpu": count(hardware.CPUs), "memory": scalar.Text(hardware.Memory.String()),
		}}
		gpus := int64(len(hardware.Devices.VGPUDevices))
		for _, device := range hardware.Devices.DynamicDirectPathIODevices {
			if device.VendorID == nvidia || device.VendorID == amd { // others pass network adapters and disks through
				gpus++
			}
		}
		m.setDevices(map[string]int64{c.options.GPUResource: gpus})
		c.add(where, m)
		return nil
	}
	for i, item := range input.Items {
		_ = decodeItem(fmt.Sprintf("items[%d]", i), item, c.problem, add)
	}
	return nil
}
