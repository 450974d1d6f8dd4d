// SPDX-License-Identifier: Apache-2.0

package importer

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/catalog"
)

// prices of machine types.
type prices struct {
	// byType has the prices by machine type, capacity type and zone; "" is every zone without a price of its own.
	byType map[string]map[string]map[string]string
	zones  []string
	// region of the prices, in lower case; empty for the only one. regions are those of the infrastructure's own lists.
	region  string
	regions sets.Set[string]
	// rates are US dollars for one unit of other currencies. foreign are the prices in a currency without one.
	rates   map[string]float64
	foreign map[string][]string
	// none: there is no price list, so that every offering is written without a price.
	none bool
	// list is where the prices are that are read, for problems; empty for those of the machine types.
	list     string
	problems []error
}

func newPrices(options Options) *prices {
	return &prices{
		byType: map[string]map[string]map[string]string{}, zones: options.Zones, region: options.Region, regions: sets.New[string](),
		rates: options.Rates, foreign: map[string][]string{}, none: true,
	}
}

// problem adds what is wrong at a place of the list.
func (p *prices) problem(where, format string, args ...any) {
	p.problems = append(p.problems, fmt.Errorf("%s%s: %s", p.list, where, fmt.Sprintf(format, args...)))
}

// counts reports whether the price of a region is to be read.
func (p *prices) counts(region string) bool {
	if region != "" {
		p.regions.Insert(strings.ToLower(region))
	}
	return p.region == "" || strings.EqualFold(region, p.region)
}

// reported returns the problems.
func (p *prices) reported() []error {
	for _, currency := range sortedKeys(p.foreign) {
		prices := p.foreign[currency]
		p.problems = append(p.problems,
			fmt.Errorf("%s is in %s, like %d more, and a catalog's prices are in US dollars; give --rates %s=<US dollars>",
				prices[0], currency, len(prices)-1, currency))
	}
	return p.problems
}

// read opens the price lists, and reads those that are there.
func (p *prices) read(format *Format, options Options) error {
	for _, list := range []struct {
		what string
		from io.Reader
		read func(*prices, *source) error
	}{{"prices", options.Prices, format.readPrices}, {"spot prices", options.SpotPrices, format.readSpotPrices}} {
		file, err := open(list.from)
		if err != nil {
			return fmt.Errorf("%s: %w", list.what, err)
		}
		if file.isEmpty() {
			continue
		}
		p.none, p.list = false, list.what+", "
		switch {
		case !file.isJSON:
			err = p.readTable(file)
		case list.read == nil:
			err = errors.New("of this infrastructure only a table can be read, in CSV with the columns instanceType, zone, capacityType, " +
				"price and currency")
		default:
			err = list.read(p, file)
		}
		if regions := sets.List(p.regions); err == nil && p.region == "" && len(regions) > 1 {
			err = fmt.Errorf("it has %d regions, such as %s and %s; choose one with --region", len(regions), shown(regions[0]),
				shown(regions[1]))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", list.what, err)
		}
		p.list = ""
	}
	return nil
}

// set records a price in zones, none for every zone, unless it is zero: a machine that costs nothing there is paid for elsewhere. Of two
// prices the higher one counts.
func (p *prices) set(where, instanceType, capacityType, price, currency string, zones ...string) {
	capacityType, price = capacityTypeOf(capacityType), normalized(price)
	number, err := catalog.ParsePrice(price)
	switch {
	case err != nil:
		p.problem(where, "price %q %s", shown(price), err)
		return
	case capacityType != catalog.OnDemand && capacityType != catalog.Spot:
		p.problem(where, "capacityType %q is neither on-demand nor spot", shown(capacityType))
		return
	case number == 0:
		p.problem(where, "%s costs nothing, which is no price of a machine", shown(instanceType))
		return
	}
	if currency = strings.ToUpper(currency); currency != "" && currency != "USD" {
		rate, known := p.rates[currency]
		if !known {
			found := fmt.Sprintf("%s%s: the price of %s", p.list, where, shown(instanceType))
			p.foreign[currency] = append(p.foreign[currency], found)
			return
		}
		number = math.Round(number*rate*1e9) / 1e9
		price = strconv.FormatFloat(number, 'f', -1, 64)
	}
	if p.byType[instanceType] == nil {
		p.byType[instanceType] = map[string]map[string]string{}
	}
	if p.byType[instanceType][capacityType] == nil {
		p.byType[instanceType][capacityType] = map[string]string{}
	}
	if len(zones) == 0 {
		zones = []string{""}
	}
	for _, zone := range zones {
		before, known := p.byType[instanceType][capacityType][zone]
		if known && before != price {
			p.problem(where, "%s, %s has the prices %s and %s; the higher one is kept", strings.TrimSpace(shown(instanceType)+" "+shown(zone)),
				capacityType, before, price)
		}
		if other, err := catalog.ParsePrice(before); err != nil || other < number {
			p.byType[instanceType][capacityType][zone] = price
		}
	}
}

// capacityTypeOf reads a capacity type as price lists spell it, such as On-Demand or OnDemand. The default is on demand.
func capacityTypeOf(text string) string {
	text = strings.NewReplacer(" ", "-", "_", "-").Replace(strings.ToLower(text))
	if text == "" || text == "ondemand" {
		return catalog.OnDemand
	}
	return text
}

// normalized writes a price without trailing zeros and exponents.
func normalized(price string) string {
	number, err := strconv.ParseFloat(strings.TrimSpace(price), 64)
	if err != nil || number < 0 || number > 1e6 {
		return strings.TrimSpace(price)
	}
	return strconv.FormatFloat(number, 'f', -1, 64)
}

// offerings returns those of a machine type, zones with the same price in one.
func (p *prices) offerings(instanceType, capacityType string, zones []string) []v1alpha1.CatalogOffering {
	if len(zones) == 0 {
		zones = p.zones
	}
	byZone := p.byType[instanceType][capacityType]
	if len(byZone) == 0 {
		if !p.none {
			return nil // the price list doesn't offer it
		}
		return []v1alpha1.CatalogOffering{offeringOf(capacityType, "", zones)}
	}
	if len(zones) == 0 {
		zones = sortedKeys(byZone)
		if len(zones) > 1 {
			zones = slices.DeleteFunc(zones, func(zone string) bool { return zone == "" })
		}
	}
	inZones := map[string]string{}
	for _, zone := range zones {
		if price := cmp.Or(byZone[zone], byZone[""]); price != "" {
			inZones[zone] = price
		}
	}
	return byPrice(capacityType, inZones)
}

// byPrice returns the offerings of a capacity type, zones with the same price in one; an empty zone is every zone.
func byPrice(capacityType string, prices map[string]string) (offerings []v1alpha1.CatalogOffering) {
	zones := map[string][]string{}
	for _, zone := range sortedKeys(prices) {
		if zone == "" {
			offerings = append(offerings, offeringOf(capacityType, prices[zone], nil))
			continue
		}
		zones[prices[zone]] = append(zones[prices[zone]], zone)
	}
	for _, price := range sortedKeys(zones) {
		offerings = append(offerings, offeringOf(capacityType, price, zones[price]))
	}
	slices.SortStableFunc(offerings, func(a, b v1alpha1.CatalogOffering) int { return slices.Compare(a.Zones, b.Zones) })
	return offerings
}

func offeringOf(capacityType, price string, zones []string) v1alpha1.CatalogOffering {
	o := v1alpha1.CatalogOffering{CapacityType: capacityType, Price: price}
	for _, zone := range zones {
		o.Zones = append(o.Zones, v1alpha1.CatalogValue(zone))
	}
	return o
}

// readTable reads prices from a table.
func (p *prices) readTable(file *source) error {
	optional := []string{"zone", "capacityType", "currency"}
	return eachRow(file, []string{"instanceType", "price"}, optional, nil, func(where string, row map[string]string) {
		p.set(where, row["instanceType"], row["capacityType"], row["price"], row["currency"], csvZones(row["zone"])...)
	}, p.problem)
}

// eachRow reads a table with a header. An error names the line; malformed lines are problems and left out.
func eachRow(file *source, needed, optional []string, more func(column string) bool, row func(where string, cells map[string]string),
	problem problemOf) error {
	raw, err := file.whole()
	if err != nil {
		return err
	}
	reader := csv.NewReader(bytes.NewReader(raw))
	reader.FieldsPerRecord, reader.TrimLeadingSpace, reader.Comment = -1, true, '#'
	header, err := reader.Read()
	if err != nil {
		return fmt.Errorf("line 1: no header: %w", err)
	}
	for i, column := range header {
		header[i] = strings.TrimSpace(column)
		if !slices.Contains(needed, header[i]) && !slices.Contains(optional, header[i]) && (more == nil || !more(header[i])) {
			return fmt.Errorf("line 1: unknown column %q; the columns are %s", shown(header[i]), strings.Join(slices.Concat(needed, optional), ", "))
		}
	}
	for _, column := range needed {
		if !slices.Contains(header, column) {
			return fmt.Errorf("line 1: column %s is missing", column)
		}
	}
	for {
		record, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			problem("the table", "%s", err) // which names the line
			continue
		}
		line, _ := reader.FieldPos(0)
		where := fmt.Sprintf("line %d", line)
		if len(record) != len(header) {
			problem(where, "%d cells, and the header has %d", len(record), len(header))
			continue
		}
		cells := make(map[string]string, len(header))
		for i, cell := range record {
			cells[header[i]] = strings.TrimSpace(cell)
		}
		row(where, cells)
	}
}
