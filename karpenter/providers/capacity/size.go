// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	fleet "github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// MachineOf returns what a machine takes that is launched as an offering, with what its template declares. GPUs are the devices of
// all resources whose name ends with /gpu, such as nvidia.com/gpu.
func MachineOf(key offering.Key, declared corev1.ResourceList) fleet.Machine {
	bounded := func(amount int64) int64 { return min(max(amount, 0), autonodev1alpha1.MaxCharge) }
	m := fleet.Machine{
		Offering: fleet.Offering{InstanceType: key.InstanceType, Zone: key.Zone, CapacityType: key.CapacityType, Reservation: key.Reservation},
		VCPUs:    bounded(declared.Cpu().MilliValue()),
		Memory:   bounded(declared.Memory().Value()),
	}
	for name, quantity := range declared {
		if strings.HasSuffix(string(name), "/gpu") {
			m.GPUs = bounded(m.GPUs + bounded(quantity.Value()))
		}
	}
	return m
}
