// SPDX-License-Identifier: Apache-2.0

package importer

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/scalar"
)

// labelColumn begins the columns that are labels.
const labelColumn = "label:"

var (
	csvNeeded   = []string{"name", "cpu", "memory"}
	csvOptional = []string{"architecture", "operatingSystem", "pods", "ephemeral-storage", "memoryOverhead", "zones", "capacityType",
		"price", "currency", "reservationID", "reservationCount"}
)

// readCSV reads a table: a row is an instance type with one offering, and further rows of the same name are further offerings. A column
// with a / is a device, and one that begins with label: a label.
func readCSV(c *collector, file *source) error {
	entries, first, order := map[string]*v1alpha1.CatalogInstanceType{}, map[string]string{}, []string{}
	table := newPrices(c.options) // the prices in the table itself
	more := func(column string) bool {
		return strings.HasPrefix(column, labelColumn) || strings.Contains(column, "/")
	}
	err := eachRow(file, csvNeeded, csvOptional, more, func(where string, row map[string]string) {
		parsed, problem := csvEntry(row)
		if problem != "" {
			c.problem(where, "%s", problem)
			return
		}
		zones, unpriced := csvZones(row["zones"]), row["price"] == "" && row["reservationID"] == ""
		if unpriced {
			if capacityType := row["capacityType"]; capacityType != "" || len(c.prices.byType[parsed.Name]) == 0 {
				parsed.Offerings = c.prices.offerings(parsed.Name, capacityTypeOf(capacityType), zones)
			} else {
				for _, capacityType := range sortedKeys(c.prices.byType[parsed.Name]) {
					parsed.Offerings = append(parsed.Offerings, c.prices.offerings(parsed.Name, capacityType, zones)...)
				}
			}
		}
		known := entries[parsed.Name]
		if known == nil {
			known = &v1alpha1.CatalogInstanceType{}
			*known, known.Offerings = parsed, nil
			entries[parsed.Name], first[parsed.Name], order = known, where, append(order, parsed.Name)
		}
		if known.Architecture != parsed.Architecture || known.OperatingSystem != parsed.OperatingSystem ||
			!maps.Equal(known.Capacity, parsed.Capacity) || !maps.Equal(known.Labels, parsed.Labels) ||
			known.MemoryOverhead != parsed.MemoryOverhead {
			c.problem(where, "%s differs from %s in more than its offering", shown(parsed.Name), first[parsed.Name])
			return
		}
		known.Offerings = append(known.Offerings, parsed.Offerings...)
		if !unpriced && row["reservationID"] == "" {
			table.set(where, parsed.Name, row["capacityType"], row["price"], row["currency"], zones...)
		}
	}, c.problem)
	if err != nil {
		return err
	}
	c.Problems = append(c.Problems, table.reported()...)
	for _, name := range order {
		var priced []v1alpha1.CatalogOffering
		for _, capacityType := range sortedKeys(table.byType[name]) {
			priced = append(priced, byPrice(capacityType, table.byType[name][capacityType])...)
		}
		entries[name].Offerings = append(priced, entries[name].Offerings...)
		c.keep(first[name], *entries[name])
	}
	return nil
}

func csvZones(cell string) []string {
	return strings.FieldsFunc(cell, func(r rune) bool { return r == ' ' || r == ';' || r == '|' })
}

func csvEntry(row map[string]string) (entry v1alpha1.CatalogInstanceType, problem string) {
	entry = v1alpha1.CatalogInstanceType{
		Name: row["name"], Architecture: row["architecture"], OperatingSystem: row["operatingSystem"], MemoryOverhead: row["memoryOverhead"],
		Capacity: map[string]scalar.Quantity{},
	}
	for _, column := range sortedKeys(row) {
		cell := row[column]
		if cell == "" {
			continue
		}
		if key, ok := strings.CutPrefix(column, labelColumn); ok {
			if entry.Labels == nil {
				entry.Labels = map[string]v1alpha1.CatalogValue{}
			}
			entry.Labels[key] = v1alpha1.CatalogValue(cell)
			continue
		}
		if slices.Contains([]string{"cpu", "memory", "pods", "ephemeral-storage"}, column) || strings.Contains(column, "/") {
			entry.Capacity[column] = scalar.Text(cell)
		}
	}
	if row["reservationID"] == "" {
		return entry, ""
	}
	count, err := strconv.ParseInt(row["reservationCount"], 10, 32)
	if err != nil || count < 0 {
		return entry, fmt.Sprintf("reservationCount %q is not a number of machines", shown(row["reservationCount"]))
	}
	offering := offeringOf(capacityTypeOf(row["capacityType"]), row["price"], csvZones(row["zones"]))
	offering.Reservation = &v1alpha1.CatalogReservation{ID: row["reservationID"], Count: int32(count)}
	entry.Offerings = []v1alpha1.CatalogOffering{offering}
	return entry, ""
}
