// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
)

func TestCapacityOf(t *testing.T) {
	offering := capacity.Offering{InstanceType: "g5", Zone: "a", CapacityType: "reserved", Reservation: "cr-1"}
	size := v1alpha1.SizeOf(offering, corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("3500m"), corev1.ResourceMemory: resource.MustParse("2Gi"),
		"nvidia.com/gpu": resource.MustParse("2"), "gpu.intel.com/i915": resource.MustParse("1"), "hugepages-2Mi": resource.MustParse("1Gi"),
	})
	labels := map[string]string{
		corev1.LabelInstanceTypeStable: "g5", corev1.LabelTopologyZone: "a", karpv1.CapacityTypeLabelKey: "reserved", v1alpha1.ReservationIDLabel: "cr-1",
	}
	for name, tc := range map[string]struct {
		annotation string
		want       capacity.Machine
	}{
		"When a Machine says its size, it should take that": {
			v1alpha1.FormatCapacity(size), capacity.Machine{Offering: offering, VCPUs: 3500, Memory: 2 << 30, GPUs: 3},
		},
		"When a Machine says no size, it should take one machine": {"", capacity.Machine{Offering: offering}},
		"When a part is malformed, it should take the others":     {"vcpus=many,memory=-1,gpus=4,machines=7,,=", capacity.Machine{Offering: offering, GPUs: 4}},
	} {
		t.Run(name, func(t *testing.T) {
			machine := &metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{v1alpha1.CapacityAnnotation: tc.annotation}}
			if got := v1alpha1.CapacityOf(machine); got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
	t.Run("When a Machine was launched without a zone, it should count in its offering's", func(t *testing.T) {
		machine := &metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.OfferingZoneAnnotation: "default"}}
		if zone := v1alpha1.CapacityOf(machine).Zone; zone != "default" {
			t.Errorf("zone %q", zone)
		}
	})
}
