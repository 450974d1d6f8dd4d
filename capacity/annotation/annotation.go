// SPDX-License-Identifier: Apache-2.0

// Package annotation writes a machine's size and prices into the annotation of its Machine, and reads them there. Operator and Karpenter
// both count by it.
package annotation

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
)

const (
	// capacityTypeLabel is Karpenter's label of a machine's capacity type, and onDemand its value by default.
	capacityTypeLabel = "karpenter.sh/capacity-type"
	onDemand          = "on-demand"
	// MaxPrice bounds a machine's price in US dollars an hour, so that sums of forged ones stay numbers.
	MaxPrice = 1e6
	// maxLabel and maxName are the most characters of a label's value, as zones are, and of an object's name.
	maxLabel, maxName = 63, 253
)

// FormatMachineSize is the value of the annotation MachineSizeAnnotation: what a machine takes from pools, and its list prices. The
// price on demand is left out where it is the list price, or unknown.
func FormatMachineSize(m capacity.Priced) string {
	price := strconv.FormatFloat(m.Price, 'f', -1, 64)
	text := fmt.Sprintf("vcpus=%d,memory=%d,gpus=%d,price=%s", m.VCPUs, m.Memory, m.GPUs, price)
	if m.OnDemand > 0 && m.CapacityType != onDemand {
		text += ",onDemand=" + strconv.FormatFloat(m.OnDemand, 'f', -1, 64)
	}
	return text
}

// MachineOf returns what a Machine takes from pools, by its labels and annotations, and its list prices. A size that is missing or can't be
// read is zero. The price of an on-demand machine is that on demand, too.
func MachineOf(object metav1.Object) (m capacity.Priced) {
	labels, annotations := object.GetLabels(), object.GetAnnotations()
	m.Offering = capacity.Offering{
		InstanceType: labels[corev1.LabelInstanceTypeStable],
		Zone:         limited(cmp.Or(labels[corev1.LabelTopologyZone], annotations[v1alpha1.OfferingZoneAnnotation]), maxLabel),
		CapacityType: cmp.Or(labels[capacityTypeLabel], onDemand),
		Reservation:  labels[v1alpha1.ReservationIDLabel],
		Catalog:      limited(v1alpha1.CatalogOf(annotations[v1alpha1.TemplateSourceAnnotation]), maxName),
	}
	size := annotations[v1alpha1.MachineSizeAnnotation]
	if len(size) > 256 {
		return m
	}
	amounts := map[string]*int64{"vcpus": &m.VCPUs, "memory": &m.Memory, "gpus": &m.GPUs}
	prices := map[string]*float64{"price": &m.Price, "onDemand": &m.OnDemand}
	for entry := range strings.SplitSeq(size, ",") {
		key, value, _ := strings.Cut(entry, "=")
		if price := prices[key]; price != nil {
			*price = ParsePrice(value)
		}
		if amount, err := strconv.ParseInt(value, 10, 64); err == nil && amount >= 0 && amounts[key] != nil {
			*amounts[key] = min(amount, autonodev1alpha1.MaxCharge)
		}
	}
	if m.CapacityType == onDemand {
		m.OnDemand = m.Price
	}
	return m
}

// limited is a text of an annotation, which may have any length; empty if it is too long for what it is said to be.
func limited(text string, maxLength int) string {
	if len(text) > maxLength {
		return ""
	}
	return text
}

// ParsePrice parses one; zero if it can't be that of a machine.
func ParsePrice(text string) float64 {
	value, ok := ParseDecimal(text)
	if !ok || value > MaxPrice {
		return 0
	}
	return value
}

// What MachineOf reads, for caches that keep nothing else of a Machine.
var (
	MachineLabels      = []string{corev1.LabelInstanceTypeStable, corev1.LabelTopologyZone, capacityTypeLabel, v1alpha1.ReservationIDLabel}
	MachineAnnotations = []string{v1alpha1.OfferingZoneAnnotation, v1alpha1.MachineSizeAnnotation, v1alpha1.TemplateSourceAnnotation}
)

// ParseDecimal parses a decimal number that isn't negative, in whichever notation but another base's.
func ParseDecimal(text string) (float64, bool) {
	value, err := strconv.ParseFloat(text, 64)
	if err != nil || value < 0 || math.IsInf(value, 0) || math.IsNaN(value) || strings.ContainsAny(text, "xX_") {
		return 0, false
	}
	return value, true
}
