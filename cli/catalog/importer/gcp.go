// SPDX-License-Identifier: Apache-2.0

package importer

import (
	"path"
	"slices"
	"strings"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/catalog"
)

// gcpType is one of gcloud compute machine-types list, in one zone.
// https://cloud.google.com/compute/docs/reference/rest/v1/machineTypes
type gcpType struct {
	Name         string
	GuestCpus    int64
	MemoryMb     int64
	Zone         string
	Architecture string
	Accelerators []struct {
		GuestAcceleratorType  string
		GuestAcceleratorCount int64
	}
	Deprecated *struct{ State string }
}

func readGCP(c *collector, file *source) error {
	machines, wheres := map[string]*machine{}, map[string]string{}
	const command = "the output of gcloud compute machine-types list --format=json"
	err := list(file, "", command, c.problem, func(where string, t *gcpType) error {
		if t.Deprecated != nil && t.Deprecated.State != "ACTIVE" && t.Deprecated.State != "" {
			return nil
		}
		where += " " + shown(t.Name)
		zone := path.Base(t.Zone) // a URL, or the name alone
		if t.Zone == "" {
			c.problem(where, "no zone")
			return nil
		}
		if c.options.Region != "" && !strings.HasPrefix(zone, c.options.Region+"-") ||
			len(c.options.Zones) > 0 && !slices.Contains(c.options.Zones, zone) {
			return nil
		}
		m, known := machines[t.Name]
		if !known {
			m = &machine{name: t.Name, capacity: capacityOf(t.GuestCpus, t.MemoryMb), capacityTypes: []string{catalog.OnDemand, catalog.Spot},
				arch: architectures[t.Architecture]}
			if m.arch == "" {
				c.problem(where, "architecture %q is neither X86_64 nor ARM64", shown(t.Architecture))
				return nil
			}
			if family, _, ok := strings.Cut(t.Name, "-"); ok {
				m.labels = map[string]v1alpha1.CatalogValue{v1alpha1.InstanceFamilyLabel: v1alpha1.CatalogValue(family)}
			}
			devices := map[string]int64{}
			for _, accelerator := range t.Accelerators {
				resource := c.options.GPUResource
				if kind := accelerator.GuestAcceleratorType; strings.HasPrefix(kind, "ct") || strings.HasPrefix(kind, "tpu") {
					resource = "google.com/tpu"
				}
				devices[resource] += accelerator.GuestAcceleratorCount
			}
			m.setDevices(devices)
			machines[t.Name], wheres[t.Name] = m, where
		}
		if !slices.Contains(m.zones, zone) {
			m.zones = append(m.zones, zone)
		}
		return nil
	})
	for _, name := range sortedKeys(machines) {
		slices.Sort(machines[name].zones)
		c.add(wheres[name], *machines[name])
	}
	return err
}
