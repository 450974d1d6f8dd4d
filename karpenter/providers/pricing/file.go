// SPDX-License-Identifier: Apache-2.0

package pricing

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/autonode-io/autonode/karpenter/providers/change"
	"github.com/autonode-io/autonode/karpenter/providers/filewatch"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

// MaxFileSize is in bytes. A ConfigMap is smaller.
const MaxFileSize = 4 << 20

var decimal = regexp.MustCompile(`^[0-9]{1,12}(\.[0-9]{1,12})?$`)

// entry is one price in the file.
type entry struct {
	InstanceType string `json:"instanceType"`
	// Zone is empty for all zones without a price of their own.
	Zone string `json:"zone,omitempty"`
	// CapacityType defaults to on-demand.
	CapacityType string `json:"capacityType,omitempty"`
	// Price in US dollars an hour, as a number or as a string.
	Price json.Number `json:"price"`
}

// File reads prices from a YAML file, a list of {instanceType, zone, capacityType, price}, and watches it. A missing
// file has no prices; on a malformed one, the last valid prices stay. It is a manager.Runnable.
type File struct {
	*filewatch.File

	state atomic.Pointer[contents]
	// changes has the instance types of each price that has changed; "" for a change of Problem.
	changes change.Log[string]
}

// contents is the last valid content.
type contents struct {
	prices map[offering.Key]float64
	// read: the file has been valid, or missing, at least once.
	read    bool
	problem error
}

// NewFile reads a file for the first time. Problem returns its errors. Without a path there are no prices.
func NewFile(path string) *File {
	f := &File{}
	f.state.Store(&contents{})
	f.File = filewatch.NewFile(path, MaxFileSize, func(ctx context.Context, raw []byte, err error) bool { return f.read(ctx, path, raw, err) })
	return f
}

// Price implements Source.
func (f *File) Price(s *template.Template, zone, capacityType string) (float64, bool) {
	prices := f.state.Load().prices
	if price, ok := prices[offering.Key{InstanceType: s.InstanceType, Zone: zone, CapacityType: capacityType}]; ok {
		return price, true
	}
	price, ok := prices[offering.Key{InstanceType: s.InstanceType, CapacityType: capacityType}]
	return price, ok
}

// Sequence implements Source.
func (f *File) Sequence() uint64 { return f.changes.Sequence() }

// Since implements Source.
func (f *File) Since(sequence uint64) (instanceTypes []string, known bool) {
	return f.changes.Since(sequence)
}

// Problem returns why the file's prices aren't in use, or nil.
func (f *File) Problem() error { return f.state.Load().problem }

func (f *File) read(ctx context.Context, path string, raw []byte, err error) (changed bool) {
	before := f.state.Load()
	var prices map[offering.Key]float64
	if err == nil {
		prices, err = parse(raw)
	}
	now := &contents{prices: prices, read: true}
	if err != nil {
		now = &contents{
			prices: before.prices, read: before.read, problem: fmt.Errorf("price file %s: %w; the prices read before stay in use", path, err),
		}
	}
	if before.problem != nil && now.problem != nil && before.problem.Error() == now.problem.Error() {
		return false
	}
	f.state.Store(now)
	f.changes.Add("")
	for _, instanceType := range repriced(before.prices, now.prices) {
		f.changes.Add(instanceType)
	}
	if now.problem != nil {
		log.FromContext(ctx).Error(now.problem, "reading prices")
	} else {
		log.FromContext(ctx).Info("prices read", "prices", len(now.prices))
	}
	return true
}

// repriced returns the instance types with another price than before.
func repriced(before, now map[offering.Key]float64) []string {
	names := sets.New[string]()
	for p, price := range now {
		if old, ok := before[p]; !ok || old != price {
			names.Insert(p.InstanceType)
		}
	}
	for p := range before {
		if _, ok := now[p]; !ok {
			names.Insert(p.InstanceType)
		}
	}
	return sets.List(names)
}

// parse rejects the whole file if any entry is malformed.
func parse(raw []byte) (map[offering.Key]float64, error) {
	var entries []entry
	if err := yaml.UnmarshalStrict(raw, &entries); err != nil {
		return nil, fmt.Errorf("it isn't a list of {instanceType, zone, capacityType, price}: %w", err)
	}
	prices := make(map[offering.Key]float64, len(entries))
	for i, e := range entries {
		if e.CapacityType == "" {
			e.CapacityType = karpv1.CapacityTypeOnDemand
		}
		price, err := strconv.ParseFloat(e.Price.String(), 64)
		key := offering.Key{InstanceType: e.InstanceType, Zone: e.Zone, CapacityType: e.CapacityType}
		_, twice := prices[key]
		switch {
		case e.InstanceType == "" || len(validation.IsValidLabelValue(e.InstanceType)) > 0:
			return nil, fmt.Errorf("entry %d: instanceType: %q is not the name of an instance type", i+1, e.InstanceType)
		case len(validation.IsValidLabelValue(e.Zone)) > 0:
			return nil, fmt.Errorf("entry %d: zone: %q is not the name of a zone", i+1, e.Zone)
		case !slices.Contains([]string{karpv1.CapacityTypeOnDemand, karpv1.CapacityTypeSpot}, e.CapacityType):
			return nil, fmt.Errorf("entry %d: capacityType: %q is neither %s nor %s", i+1, e.CapacityType, karpv1.CapacityTypeOnDemand,
				karpv1.CapacityTypeSpot)
		case err != nil || !decimal.MatchString(e.Price.String()):
			return nil, fmt.Errorf("entry %d: price: %q is not a price in US dollars an hour, such as 0.096", i+1, e.Price)
		case twice:
			return nil, fmt.Errorf("entry %d: instanceType %s, zone %q, capacityType %s has a price already", i+1, e.InstanceType,
				e.Zone, e.CapacityType)
		}
		prices[key] = price
	}
	return prices, nil
}
