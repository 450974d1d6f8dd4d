// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"math"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// Origin is a machine's template source and offering at its launch. Karpenter replaces a node whose instance type is missing
// from GetInstanceTypes, so it stays there as long as a machine has it, even if it can't be launched or read any more.
type Origin struct {
	// Source is the template source, as v1alpha1.TemplateSourceAnnotation names it; empty if the machine has no such
	// annotation.
	Source string
	// Key is the chosen offering.
	offering.Key
	// Price in US dollars an hour at launch; 0 if the machine has none.
	Price float64
	// NodeZone is the zone of the machine's Node if that isn't the offering's: a cloud controller manager has set it. Karpenter looks
	// for the price of a node in the zone that the Node has.
	NodeZone string
}

// Compare orders origins by offering, source, price and the zone of the Node.
func (f Origin) Compare(other Origin) int {
	return cmp.Or(f.Key.Compare(other.Key), cmp.Compare(f.Source, other.Source), cmp.Compare(f.Price, other.Price),
		cmp.Compare(f.NodeZone, other.NodeZone))
}

// OriginOf reads a Machine's origin.
func OriginOf(m *clusterv1.Machine) Origin {
	price, err := strconv.ParseFloat(m.Annotations[v1alpha1.PriceAnnotation], 64)
	// This form rejects NaN too, which compares false with everything.
	if err != nil || !(price >= 0 && price < math.MaxFloat64) {
		price = 0
	}
	return Origin{Source: m.Annotations[v1alpha1.TemplateSourceAnnotation], Key: OfferingOf(m), Price: price}
}

// OfferingOf reads the offering that a Machine was launched as.
func OfferingOf(m *clusterv1.Machine) offering.Key {
	zone := m.Labels[corev1.LabelTopologyZone]
	if zone == "" {
		// A machine that was launched without a zone has no label of one.
		zone = m.Annotations[v1alpha1.OfferingZoneAnnotation]
	}
	return offering.Key{
		InstanceType: m.Labels[corev1.LabelInstanceTypeStable],
		Zone:         zone,
		CapacityType: m.Labels[karpv1.CapacityTypeLabelKey],
		Reservation:  m.Labels[v1alpha1.ReservationIDLabel],
	}
}
