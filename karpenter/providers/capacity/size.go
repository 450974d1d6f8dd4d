// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"strings"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// MachineOf returns what a machine takes that is launched as an offering of a template, with what that declares. GPUs are the devices of
// all resources whose name ends with /gpu, such as nvidia.com/gpu.
func MachineOf(key offering.Key, tmpl *template.Template) capacity.Machine {
	declared := tmpl.Capacity
	bounded := func(amount int64) int64 { return min(max(amount, 0), autonodev1alpha1.MaxCharge) }
	m := capacity.Machine{
		Offering: capacity.Offering{
			InstanceType: key.InstanceType, Zone: key.Zone, CapacityType: key.CapacityType, Reservation: key.Reservation, Catalog: tmpl.Source.Catalog(),
		},
		VCPUs:  bounded(declared.Cpu().MilliValue()),
		Memory: bounded(declared.Memory().Value()),
	}
	for name, quantity := range declared {
		if strings.HasSuffix(string(name), "/gpu") {
			m.GPUs = bounded(m.GPUs + bounded(quantity.Value()))
		}
	}
	return m
}
