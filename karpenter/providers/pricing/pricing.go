// SPDX-License-Identifier: Apache-2.0

// Package pricing returns the price of a machine in US dollars an hour. Sources are tried in order; the last one
// always has a price.
package pricing

import (
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/catalog"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// Source has the prices of some templates.
type Source interface {
	// Price of one machine in a zone in US dollars an hour, or false if this source has none.
	Price(s *template.Template, zone, capacityType string) (float64, bool)
	// Sequence changes whenever a result may have.
	Sequence() uint64
	// Since returns the instance types whose prices may have changed after a sequence, or false if that isn't known any more.
	Since(sequence uint64) (instanceTypes []string, known bool)
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

// Since implements Source. The sequence is the sum of those of the sources, of which one changes at most.
func (s Sources) Since(sequence uint64) (instanceTypes []string, known bool) {
	var changing Source
	for _, source := range s {
		if _, never := source.(interface{ never() }); never {
			continue
		}
		if changing != nil {
			return nil, sequence == s.Sequence()
		}
		changing = source
	}
	if changing == nil {
		return nil, true
	}
	return changing.Since(sequence)
}

// New reads a file, else the catalog or the annotations on the template source, else returns an estimate.
func New(file *File) Source { return Sources{file, Catalogs{}, Annotations{}, Estimate{}} }

// constant is a source that depends on the template only.
type constant struct{}

// Sequence implements Source.
func (constant) Sequence() uint64 { return 0 }

// Since implements Source.
func (constant) Since(uint64) ([]string, bool) { return nil, true }

func (constant) never() {}

// Catalogs reads prices from the InstanceTypeCatalog that offers the template. A reserved offering has its own: see catalog.Offering.
type Catalogs struct{ constant }

// Price implements Source.
func (Catalogs) Price(s *template.Template, zone, capacityType string) (price float64, priced bool) {
	for i := range s.Offerings {
		o := &s.Offerings[i]
		if o.Priced && o.CapacityType == capacityType && (o.Zone == zone || o.Zone == "") && (!priced || o.Price < price) {
			price, priced = o.Price, true
		}
	}
	return price, priced
}

// Annotations reads prices from the template source's annotations.
type Annotations struct{ constant }

// Price implements Source.
func (Annotations) Price(s *template.Template, _, capacityType string) (float64, bool) {
	if s.IsCatalogs() {
		return 0, false
	}
	price := s.Price
	if capacityType == karpv1.CapacityTypeSpot {
		price = s.SpotPrice
	}
	if price == nil {
		return 0, false
	}
	return *price, true
}

// Components of the estimate: see catalog.EstimatePrice.
const (
	CPUPrice     = catalog.CPUPrice
	MemoryPrice  = catalog.MemoryPrice
	GPUPrice     = catalog.GPUPrice
	MinimumPrice = catalog.MinimumPrice
)

// Estimate makes a bigger machine dearer if no source has a price. It has spot machines of templates that
// make no others: elsewhere a spot offering exists because of its price.
type Estimate struct{ constant }

// Price implements Source.
func (Estimate) Price(s *template.Template, _, capacityType string) (float64, bool) {
	if s.IsCatalogs() {
		return 0, false // whoever writes a catalog declares its prices; one that is missing closes the offering
	}
	if capacityType != karpv1.CapacityTypeOnDemand && capacityType != s.CapacityType {
		return 0, false
	}
	return catalog.EstimatePrice(s.Capacity), true
}
