// SPDX-License-Identifier: Apache-2.0

// Package pricing returns the price of a machine in US dollars an hour. Sources are tried in order; the last one
// always has a price.
package pricing

import (
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// Source has the prices of some templates.
type Source interface {
	// Price of one machine in a zone in US dollars an hour, or false if this source has none.
	Price(s *template.Template, zone, capacityType string) (float64, bool)
	// Sequence changes whenever a result may have.
	Sequence() uint64
}

// Sources are tried in order; the first price wins.
type Sources []Source

// Price implements Source.
func (s Sources) Price(tmpl *template.Template, zone, capacityType string) (float64, bool) {
	for _, source := range s {
		if price, ok := source.Price(tmpl, zone, capacityType); ok {
			return price, true
		}
	}
	return 0, false
}

// Sequence implements Source.
func (s Sources) Sequence() (sequence uint64) {
	for _, source := range s {
		sequence += source.Sequence()
	}
	return sequence
}

// Default reads the annotations on the template source, else returns an estimate.
func Default() Source { return Sources{Annotations{}, Estimate{}} }

// WithFile reads a file, else the default.
func WithFile(file *File) Source { return Sources{file, Annotations{}, Estimate{}} }

// constant is a source that depends on the template only.
type constant struct{}

// Sequence implements Source.
func (constant) Sequence() uint64 { return 0 }

// Annotations reads prices from the template source's annotations.
type Annotations struct{ constant }

// Price implements Source.
func (Annotations) Price(s *template.Template, _, capacityType string) (float64, bool) {
	price := s.Price
	if capacityType == karpv1.CapacityTypeSpot {
		price = s.SpotPrice
	}
	if price == nil {
		return 0, false
	}
	return *price, true
}

// Components of the estimate, in US dollars an hour. The figures are near the list prices of large clouds for
// general-purpose machines. Only their proportions matter: a bigger machine has to cost more.
const (
	CPUPrice    = 0.034  // a core
	MemoryPrice = 0.0045 // a GiB
	GPUPrice    = 0.6    // a device of any other resource with a domain in its name, such as nvidia.com/gpu
	// MinimumPrice is for a machine without known components. Karpenter doesn't consolidate a machine whose price is
	// 0.
	MinimumPrice = 0.001
)

// Estimate makes a bigger machine dearer if no source has a price. It knows spot machines of templates that
// make no others: elsewhere a spot offering exists because of its price.
type Estimate struct{ constant }

// Price implements Source.
func (Estimate) Price(s *template.Template, _, capacityType string) (float64, bool) {
	if capacityType != karpv1.CapacityTypeOnDemand && capacityType != s.CapacityType {
		return 0, false
	}
	price := s.Capacity.Cpu().AsApproximateFloat64()*CPUPrice +
		s.Capacity.Memory().AsApproximateFloat64()/(1<<30)*MemoryPrice
	for name, quantity := range s.Capacity {
		if template.IsDevice(name) {
			price += quantity.AsApproximateFloat64() * GPUPrice
		}
	}
	return max(price, MinimumPrice), true
}
