// SPDX-License-Identifier: Apache-2.0

package importer

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/autonode-io/autonode/api/scalar"
	"github.com/autonode-io/autonode/catalog"
)

// azureSKU is one of az vm list-skus.
// https://learn.microsoft.com/en-us/rest/api/compute/resource-skus/list
type azureSKU struct {
	Name         string
	ResourceType string
	LocationInfo []struct {
		Location string
		Zones    []string
	}
	Capabilities []struct{ Name, Value string }
	Restrictions []azureRestriction
}

// azureRestriction is where a subscription can't use a size.
type azureRestriction struct {
	Type            string
	RestrictionInfo struct{ Locations, Zones []string }
}

// zones returns the zones of a region in which the subscription can use the size, and false if it has zones there and none of them is
// left. An empty region is every region.
func (s azureSKU) zones(region string) (zones []string, usable bool) {
	zonal := false
	for _, location := range s.LocationInfo {
		if region != "" && !strings.EqualFold(location.Location, region) {
			continue
		}
		left := slices.DeleteFunc(slices.Clone(location.Zones), func(zone string) bool {
			return slices.ContainsFunc(s.Restrictions, func(r azureRestriction) bool {
				return r.Type == "Zone" && slices.Contains(r.RestrictionInfo.Zones, zone) &&
					slices.ContainsFunc(r.RestrictionInfo.Locations, func(other string) bool { return strings.EqualFold(other, location.Location) })
			})
		})
		zonal = zonal || len(location.Zones) > 0
		zones = append(zones, left...)
	}
	slices.Sort(zones)
	return slices.Compact(zones), !zonal || len(zones) > 0
}

func readAzure(raw []byte, options Options) (*Imported, error) {
	items, err := list(raw, "the output of az vm list-skus")
	if err != nil {
		return nil, err
	}
	prices, err := azurePrices(options)
	if err != nil {
		return nil, err
	}
	c := newCollector(options, prices)
	for i, item := range items {
		where := fmt.Sprintf("[%d]", i)
		sku := azureSKU{}
		if err := decode(item, &sku); err != nil {
			c.problem(named(where, item), "%s", err)
			continue
		}
		where += " " + shown(sku.Name)
		// The list has disks and snapshots too, and sizes that the subscription can't use.
		if sku.ResourceType != "virtualMachines" || slices.ContainsFunc(sku.Restrictions, func(r azureRestriction) bool { return r.Type == "Location" }) {
			continue
		}
		zones, usable := sku.zones(options.Region)
		if !usable {
			continue
		}
		m, problem := azureMachine(sku, c.options)
		if problem != "" {
			c.problem(where, "%s", problem)
			continue
		}
		m.zones = zones
		c.add(where, m)
	}
	return c.result()
}

func azureMachine(sku azureSKU, options Options) (m machine, problem string) {
	capabilities := map[string]string{}
	for _, capability := range sku.Capabilities {
		capabilities[capability.Name] = capability.Value
	}
	cores, err := strconv.ParseInt(capabilities["vCPUs"], 10, 32)
	if err != nil {
		return m, fmt.Sprintf("capability vCPUs: %q is not a number", shown(capabilities["vCPUs"]))
	}
	gibibytes, err := strconv.ParseFloat(capabilities["MemoryGB"], 64)
	if err != nil || !(gibibytes > 0 && gibibytes < math.MaxInt32) {
		return m, fmt.Sprintf("capability MemoryGB: %q is not a number", shown(capabilities["MemoryGB"]))
	}
	m = machine{name: sku.Name, capacity: capacityOf(cores, int64(gibibytes*1024)), capacityTypes: []string{catalog.OnDemand}}
	switch capabilities["CpuArchitectureType"] {
	case "x64", "":
		m.arch = "amd64"
	case "Arm64":
		m.arch = "arm64"
	default:
		return m, fmt.Sprintf("capability CpuArchitectureType: %q is neither x64 nor Arm64", shown(capabilities["CpuArchitectureType"]))
	}
	if gpus, err := strconv.ParseInt(capabilities["GPUs"], 10, 32); err == nil && gpus > 0 {
		m.capacity[options.GPUResource] = scalar.Text(strconv.FormatInt(gpus, 10))
	}
	if strings.EqualFold(capabilities["LowPriorityCapable"], "True") {
		m.capacityTypes = append(m.capacityTypes, catalog.Spot)
	}
	return m, ""
}

func azurePrices(options Options) (*prices, error) {
	if len(options.Prices) > 0 && looksLikeJSON(options.Prices) {
		list := newPrices(options)
		return list, list.readAzure(options.Prices, options.Region)
	}
	return onlyTable(options)
}

// readAzure reads what the Retail Prices API answers, or its items alone.
// https://learn.microsoft.com/en-us/rest/api/cost-management/retail-prices/azure-retail-prices
func (p *prices) readAzure(raw []byte, region string) error {
	type item struct {
		ArmSkuName, SkuName, ProductName, Type, UnitOfMeasure, ArmRegionName string
		RetailPrice                                                          json.Number
	}
	input := struct{ Items []item }{}
	if err := decode(raw, &input); err != nil {
		if err := decode(raw, &input.Items); err != nil {
			return fmt.Errorf("prices: not an answer of the Retail Prices API: %w", described(raw, err))
		}
	}
	for i, each := range input.Items {
		if each.Type != "Consumption" || each.UnitOfMeasure != "1 Hour" || strings.Contains(each.ProductName, "Windows") || strings.Contains(each.SkuName, "Low Priority") ||
			region != "" && !strings.EqualFold(each.ArmRegionName, region) {
			continue
		}
		capacityType := catalog.OnDemand
		if strings.HasSuffix(each.SkuName, " Spot") {
			capacityType = catalog.Spot
		}
		p.set(fmt.Sprintf("prices, Items[%d]", i), each.ArmSkuName, capacityType, "", each.RetailPrice.String())
	}
	return nil
}
