// SPDX-License-Identifier: Apache-2.0

package importer

import (
	"encoding/json"
	"fmt"
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

func readOpenStack(raw []byte, options Options) (*Imported, error) {
	items, err := list(raw, "the output of openstack flavor list --long -f json")
	if err != nil {
		return nil, err
	}
	prices, err := onlyTable(options)
	if err != nil {
		return nil, err
	}
	c := newCollector(options, prices)
	for i, item := range items {
		where := fmt.Sprintf("[%d]", i)
		flavor := openStackFlavor{}
		if err := decode(item, &flavor); err != nil {
			c.problem(named(where, item), "%s", err)
			continue
		}
		where += " " + shown(flavor.Name)
		m := machine{name: flavor.Name, arch: "amd64", capacity: capacityOf(flavor.VCPUs, flavor.RAM), capacityTypes: []string{catalog.OnDemand}}
		if flavor.Disk > 0 {
			m.capacity["ephemeral-storage"] = scalar.Text(strconv.FormatInt(flavor.Disk, 10) + "Gi")
		}
		properties := openStackProperties(flavor.Properties)
		if arch := properties["hw:cpu_architecture"]; arch == "aarch64" || properties["capabilities:cpu_arch"] == "aarch64" {
			m.arch = "arm64"
		}
		// Devices by their alias and number, such as a100:2, or virtual ones.
		gpus, _ := strconv.ParseInt(properties["resources:VGPU"], 10, 32)
		for alias := range strings.SplitSeq(properties["pci_passthrough:alias"], ",") {
			if _, count, ok := strings.Cut(strings.TrimSpace(alias), ":"); ok {
				n, err := strconv.ParseInt(count, 10, 32)
				if err != nil {
					c.problem(where, "property pci_passthrough:alias: %q is not a list of <alias>:<number>; the flavor is imported without devices", shown(properties["pci_passthrough:alias"]))
					continue
				}
				gpus += n
			}
		}
		if gpus > 0 {
			m.capacity[c.options.GPUResource] = scalar.Text(strconv.FormatInt(gpus, 10))
		}
		c.add(where, m)
	}
	return c.result()
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
