// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/capacity"
)

// CapacityAnnotation is on every Machine of a NodeClaim: what it takes of an account's quotas, as its template declares it, such as
// vcpus=4000,memory=17179869184,gpus=1. The units are those of capacity.Resource. See CapacityOf.
const CapacityAnnotation = Group + "/capacity"

// CapacityOf returns what a Machine takes of an account: its offering, and its size from CapacityAnnotation. A size that
// isn't there or malformed is zero. Operator and Karpenter both count by this.
func CapacityOf(machine metav1.Object) capacity.Machine {
	labels, annotations := machine.GetLabels(), machine.GetAnnotations()
	m := capacity.Machine{Offering: capacity.Offering{
		InstanceType: labels[corev1.LabelInstanceTypeStable],
		// A machine that was launched without a zone has no label of one.
		Zone:         cmp.Or(labels[corev1.LabelTopologyZone], annotations[OfferingZoneAnnotation]),
		CapacityType: labels[karpv1.CapacityTypeLabelKey],
		Reservation:  labels[ReservationIDLabel],
	}}
	for field := range strings.SplitSeq(annotations[CapacityAnnotation], ",") {
		name, value, _ := strings.Cut(field, "=")
		amount, err := strconv.ParseInt(value, 10, 64)
		if err != nil || amount < 0 {
			continue
		}
		switch capacity.Resource(name) {
		case capacity.VCPUs:
			m.VCPUs = amount
		case capacity.Memory:
			m.Memory = amount
		case capacity.GPUs:
			m.GPUs = amount
		case capacity.Machines: // each is one
		}
	}
	return m
}

// FormatCapacity returns the value of CapacityAnnotation.
func FormatCapacity(m capacity.Machine) string {
	return fmt.Sprintf("%s=%d,%s=%d,%s=%d", capacity.VCPUs, m.VCPUs, capacity.Memory, m.Memory, capacity.GPUs, m.GPUs)
}

// SizeOf returns a machine of an offering with the size that a capacity declares. GPUs are the devices of all extended
// resources with gpu in their name, such as nvidia.com/gpu.
func SizeOf(offering capacity.Offering, declared corev1.ResourceList) capacity.Machine {
	m := capacity.Machine{Offering: offering, VCPUs: max(0, declared.Cpu().MilliValue()), Memory: max(0, declared.Memory().Value())}
	for name, quantity := range declared {
		if strings.Contains(string(name), "/") && strings.Contains(string(name), "gpu") {
			m.GPUs += min(max(0, quantity.Value()), math.MaxInt32)
		}
	}
	return m
}
