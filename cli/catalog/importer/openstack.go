// SPDX-License-Identifier: Apache-2.0

package importer

import (
	"cmp"
	"encoding/json"
	"regexp"
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

func readOpenStack(c *collector, file *source) error {
	const command = "the output of openstack flavor list --long -f json"
	return list(file, "", command, c.problem, func(where string, flavor *openStackFlavor) error {
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
		for text := range strings.SplitSeq(properties["pci_passthrough:alias"], ",") {
			alias, number, _ := strings.Cut(strings.TrimSpace(text), ":")
			n, err := strconv.ParseInt(cmp.Or(number, "1"), 10, 32)
			switch {
			case alias == "":
			case err != nil:
				c.problem(where, "property pci_passthrough:alias: %q is not <alias>:<number>; the flavor is imported without it",
					shown(text))
			case openStackGPU.MatchString(alias):
				gpus += n
			default:
				c.problem(where,
					"property pci_passthrough:alias: %q isn't the name of a GPU and doesn't count; if it is one, add %s to the capacity",
					shown(alias), c.options.GPUResource)
			}
		}
		m.setDevices(map[string]int64{c.options.GPUResource: gpus})
		c.add(where, m)
		return nil
	})
}

// openStackGPU matches the alias of a GPU. A platform chooses the aliases, and NICs and disks have some too.
var openStackGPU = regexp.MustCompile(`(?i)gpu|nvidia|tesla|quadro|geforce|rtx|instinct|radeon|gaudi|` +
	`(^|[^a-z0-9])(a2|a10|a16|a30|a40|a100|a800|b[23]00|gb[23]00|h[128]00|h20|l4|l40s?|` +
	`t4|p4|p40|p100|v100|k80|m10|m60|mi[0-9]{2,3}x?)([^a-z0-9]|$)`)

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
