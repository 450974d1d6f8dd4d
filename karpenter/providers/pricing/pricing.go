// SPDX-License-Identifier: Apache-2.0

// Package pricing says what a machine costs, in US dollars an hour. Sources are asked in order; the last one always answers.
package pricing

import (
	"slices"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// Source knows the price of some shapes.
type Source interface {
	// Price of one machine in a zone in US dollars an hour, or false where this source doesn't know it.
	Price(s *template.Template, zone, capacityType string) (float64, bool)
	// Sequence changes whenever an answer may have.
	Sequence() uint64
	// Complete is false while something that the source reads its prices from couldn't be read: that it doesn't know a price
	// means nothing then.
	Complete() bool
}

// Sources are asked in order; the first that knows answers.
type Sources []Source

// Price implements Source.
func (s Sources) Price(sh *template.Template, zone, capacityType string) (float64, bool) {
	for _, source := range s {
		if price, ok := source.Price(sh, zone, capacityType); ok {
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

// Complete implements Source.
func (s Sources) Complete() bool {
	return !slices.ContainsFunc(s, func(source Source) bool { return !source.Complete() })
}

// Default is the annotations on the shape source, and an estimate where there are none.
func Default() Source { return Sources{Annotations{}, Estimate{}} }

// WithFile is a file, and the default where it doesn't know a price.
func WithFile(file *File) Source { return Sources{file, Annotations{}, Estimate{}} }

// constant is a source whose answers depend on nothing but the shape.
type constant struct{}

// Sequence implements Source.
func (constant) Sequence() uint64 { return 0 }

// Complete implements Source.
func (constant) Complete() bool { return true }

// Annotations reads the prices that the shape's source carries.
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

// What the estimate counts, in US dollars an hour. The figures are near what large clouds ask for general-purpose
// machines; only their proportions matter, because an estimate is there to make a bigger machine dearer.
const (
	CPUPrice    = 0.034  // a core
	MemoryPrice = 0.0045 // a GiB
	GPUPrice    = 0.6    // a device of any other resource with a domain in its name, such as nvidia.com/gpu
	// MinimumPrice is of a machine without anything to count. Karpenter takes a price of 0 for a machine that isn't worth
	// removing.
	MinimumPrice = 0.001
)

// Estimate makes a bigger machine dearer where nobody says what machines cost. It knows spot machines of templates that
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
