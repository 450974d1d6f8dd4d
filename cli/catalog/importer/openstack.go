// SPDX-License-Identifier: Apache-2.0

package importer

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/catalog"
)

// openStackFlavor is one of openstack flavor list --long -f json.
// https://docs.openstack.org/python-openstackclient/latest/cli/command-objects/flavor.html
type openStackFlavor struct {
	Name       string
	RAM        int64 // MiB
	Disk       int64 // GiB
	VCPUs      int64
	Properties json.RawMessage
}

func readOpenStack(c *collector, raw []byte) error {
	return list(c, raw, "the output of openstack flavor list --long -f json", func(where string, flavor *openStackFlavor) {
		where += " " + shown(flavor.Name)
		m := machine{name: flavor.Name, arch: "amd64", capacity: capacityOf(flavor.VCPUs, flavor.RAM), capacityTypes: []string{catalog.OnDemand}}
		if flavor.Disk > 0 {
			m.capacity["ephemeral-storage"] = scalar.Text(strconv.FormatInt(flavor.Disk, 10) + "Gi")
		}
		properties := openStackProperties(flavor.Properties)
		if properties["hw:cpu_architecture"] == "aarch64" || properties["capabilities:cpu_arch"] == "aarch64" {
			m.arch = "arm64"
		}
		// Devices by their alias and number, such as a100:2, or virtual ones.
		gpus, _ := strconv.ParseInt(properties["resources:VGPU"], 10, 32)
		aliases := properties["pci_passthrough:alias"]
		for alias := range strings.SplitSeq(aliases, ",") {
			if _, number, ok := strings.Cut(strings.TrimSpace(alias), ":"); ok {
				n, err := strconv.ParseInt(number, 10, 32)
				if err != nil {
					c.problem(where, "property pci_passthrough:alias: %q is not a list of <alias>:<number>; the flavor is imported without devices",
						shown(aliases))
					continue
				}
				gpus += n
			}
		}
		if gpus > 0 {
			m.capacity[c.options.GPUResource] = count(gpus)
		}
		c.add(where, m)
	})
}

// openStackProperties reads an object, or of older clients a text such as hw:a='1', hw:b='2'.
func openStackProperties(raw json.RawMessage) map[string]string {
	properties := map[string]string{}
	if json.Unmarshal(raw, &properties) == nil {
		return properties
	}
	text := ""
	if json.Unmarshal(raw, &text) != nil {
		return nil
	}
	for part := range strings.SplitSeq(text, ", ") {
		if key, value, ok := strings.Cut(part, "="); ok {
			properties[strings.TrimSpace(key)] = strings.Trim(value, `'"`)
		}
	}
	return properties
}
