// SPDX-License-Identifier: Apache-2.0

package importer

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/catalog"
)

// prices of machine types.
type prices struct {
	// byType has the prices by machine type, capacity type and zone; "" is every zone without a price of its own.
	byType map[string]map[string]map[string]string
	zones  []string
	// none: there is no price list, so that every offering is written without a price.
	none     bool
	problems []error
}

func newPrices(options Options) *prices {
	return &prices{byType: map[string]map[string]map[string]string{}, zones: options.Zones, none: true}
}

// read opens the price lists, and reads those that are there.
func (p *prices) read(format *Format, options Options) error {
	for _, list := range []struct {
		what string
		from io.Reader
		read func(*prices, *priceFile, string) error
	}{{"prices", options.Prices, format.readPrices}, {"spot prices", options.SpotPrices, format.readSpotPrices}} {
		file, err := open(list.from)
		if err != nil {
			return err
		}
		if file.isEmpty() {
			continue
		}
		p.none = false
		switch {
		case !file.isJSON:
			err = p.readTable(file)
		case list.read == nil:
			err = errors.New("of this infrastructure only a table can be read, in CSV with the columns instanceType, zone, capacityType and price")
		default:
			err = list.read(p, file, options.Region)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", list.what, err)
		}
	}
	return nil
}

// setBilled records a price of a cloud's list, unless it is zero: a machine that costs nothing there is paid for elsewhere. Of two
// prices the higher one is kept.
func (p *prices) setBilled(where, instanceType, capacityType, zone, price string) {
	number, err := strconv.ParseFloat(strings.TrimSpace(price), 64)
	if err == nil && number == 0 {
		p.problems = append(p.problems, fmt.Errorf("%s: %s costs nothing, which is no price of a machine", where, shown(instanceType)))
		return
	}
	if before, known := p.byType[instanceType][capacityType][zone]; known && err == nil && before != normalized(price) {
		higher := before
		if other, err := strconv.ParseFloat(before, 64); err == nil && number > other {
			higher = normalized(price)
		}
		p.problems = append(p.problems, fmt.Errorf("%s: %s, %s has the prices %s and %s; the higher one is kept", where, shown(instanceType),
			capacityType, shown(before), shown(normalized(price))))
		price = higher
	}
	p.set(where, instanceType, capacityType, zone, price)
}

// set records a price.
func (p *prices) set(where, instanceType, capacityType, zone, price string) {
	price = normalized(price)
	if _, err := catalog.ParsePrice(price); err != nil {
		p.problems = append(p.problems, fmt.Errorf("%s: price %q %w", where, shown(price), err))
		return
	}
	if p.byType[instanceType] == nil {
		p.byType[instanceType] = map[string]map[string]string{}
	}
	if p.byType[instanceType][capacityType] == nil {
		p.byType[instanceType][capacityType] = map[string]string{}
	}
	p.byType[instanceType][capacityType][zone] = price
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
	byPrice := map[string][]string{}
	for _, zone := range zones {
		if price := cmp.Or(byZone[zone], byZone[""]); price != "" {
			byPrice[price] = append(byPrice[price], zone)
		}
	}
	offerings := make([]v1alpha1.CatalogOffering, 0, len(byPrice))
	for _, price := range sortedKeys(byPrice) {
		slices.Sort(byPrice[price])
		offerings = append(offerings, offeringOf(capacityType, price, byPrice[price]))
	}
	slices.SortStableFunc(offerings, func(a, b v1alpha1.CatalogOffering) int { return slices.Compare(a.Zones, b.Zones) })
	return offerings
}

func offeringOf(capacityType, price string, zones []string) v1alpha1.CatalogOffering {
	o := v1alpha1.CatalogOffering{CapacityType: capacityType, Price: price}
	for _, zone := range zones {
		if zone != "" {
			o.Zones = append(o.Zones, v1alpha1.CatalogValue(zone))
		}
	}
	return o
}

// readTable reads prices from a table.
func (p *prices) readTable(file *priceFile) error {
	raw, err := file.table()
	if err != nil {
		return err
	}
	return eachRow(raw, []string{"instanceType", "price"}, []string{"zone", "capacityType"}, nil, func(line int, row map[string]string) {
		p.set(fmt.Sprintf("prices, line %d", line), row["instanceType"], cmp.Or(row["capacityType"], catalog.OnDemand), row["zone"], row["price"])
	}, func(err error) { p.problems = append(p.problems, fmt.Errorf("prices: %w", err)) })
}

// eachRow reads a table with a header. An error names the line; malformed lines are reported and left out.
func eachRow(raw []byte, needed, optional []string, more func(column string) bool, row func(line int, cells map[string]string),
	report func(error)) error {
	reader := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(raw, []byte("\xef\xbb\xbf"))))
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
			report(err) // which names the line
			continue
		}
		line, _ := reader.FieldPos(0)
		if len(record) != len(header) {
			report(fmt.Errorf("line %d: %d cells, and the header has %d", line, len(record), len(header)))
			continue
		}
		cells := make(map[string]string, len(header))
		for i, cell := range record {
			cells[header[i]] = strings.TrimSpace(cell)
		}
		row(line, cells)
	}
}
