// SPDX-License-Identifier: Apache-2.0

package importer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/autonode-io/autonode/catalog"
)

// azureSKU is one of az vm list-skus.
// https://learn.microsoft.com/en-us/rest/api/compute/resource-skus/list
type azureSKU struct {
	Name         string
	ResourceType string
	Locations    []string
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
	Values          []string
}

// in reports whether one of locations is a region. Azure spells them in any case.
func in(locations []string, region string) bool {
	return slices.ContainsFunc(locations, func(location string) bool { return strings.EqualFold(location, region) })
}

// regions are those that the size is listed in, in lower case.
func (s *azureSKU) regions() []string {
	var regions []string
	for _, location := range s.LocationInfo {
		regions = append(regions, strings.ToLower(location.Location))
	}
	for _, location := range s.Locations {
		regions = append(regions, strings.ToLower(location))
	}
	slices.Sort(regions)
	return slices.Compact(regions)
}

// zones returns the zones of a region in which the subscription can use the size, as nodes name them: eastus-1. It returns false if the
// size isn't offered there, or the subscription can use it in none of its zones.
func (s *azureSKU) zones(region string) (zones []string, usable bool) {
	if regions := s.regions(); len(regions) > 0 && !slices.Contains(regions, region) {
		return nil, false
	}
	zonal := false
	for _, location := range s.LocationInfo {
		if !strings.EqualFold(location.Location, region) {
			continue
		}
		zonal = zonal || len(location.Zones) > 0
		for _, zone := range location.Zones {
			if !s.restricted(region, zone) {
				zones = append(zones, region+"-"+zone)
			}
		}
	}
	slices.Sort(zones)
	return slices.Compact(zones), !s.restricted(region, "") && (!zonal || len(zones) > 0)
}

// restricted reports whether the subscription can't use a size in a zone of a region; an empty zone is the region itself.
func (s *azureSKU) restricted(region, zone string) bool {
	return slices.ContainsFunc(s.Restrictions, func(r azureRestriction) bool {
		// An older API has the locations in values.
		locations := slices.Concat(r.RestrictionInfo.Locations, r.Values)
		if len(locations) > 0 && !in(locations, region) {
			return false
		}
		if zone == "" {
			return strings.EqualFold(r.Type, "Location")
		}
		return strings.EqualFold(r.Type, "Zone") && slices.Contains(r.RestrictionInfo.Zones, zone)
	})
}

func readAzure(c *collector, file *source) error {
	region := c.options.Region
	return list(file, "", "the output of az vm list-skus", c.problem, func(where string, sku *azureSKU) error {
		if sku.ResourceType != "virtualMachines" { // the list has disks and snapshots too
			return nil
		}
		for _, other := range sku.regions() {
			if region = cmp.Or(region, other); region != other && c.options.Region == "" {
				return fmt.Errorf("it has several regions, such as %s and %s; choose one with --region", shown(min(region, other)),
					shown(max(region, other)))
			}
		}
		zones, usable := sku.zones(region)
		if !usable {
			return nil
		}
		where += " " + shown(sku.Name)
		m, problem := azureMachine(sku, c.options)
		if problem != "" {
			c.problem(where, "%s", problem)
			return nil
		}
		m.zones = zones
		c.add(where, m)
		return nil
	})
}

// azureAMD are the series with AMD's GPUs, which have no capability that reports it.
var azureAMD = regexp.MustCompile(`(?i)^Standard_(NV\d+as_v4|NV\d+ads_V710_v\d+|NG\d+\w*_V620_v\d+|ND\d+\w*_MI\d+X_v\d+)$`)

func azureMachine(sku *azureSKU, options Options) (m machine, problem string) {
	capabilities := map[string]string{}
	for _, capability := range sku.Capabilities {
		capabilities[capability.Name] = capability.Value
	}
	// A size with constrained vCPUs, such as Standard_M8-2ms, has fewer than it is named after.
	vcpus := cmp.Or(capabilities["vCPUsAvailable"], capabilities["vCPUs"])
	cores, err := strconv.ParseInt(vcpus, 10, 32)
	if err != nil {
		return m, fmt.Sprintf("capability vCPUs: %q is not a number", shown(vcpus))
	}
	gibibytes, err := strconv.ParseFloat(capabilities["MemoryGB"], 64)
	if err != nil || !(gibibytes > 0 && gibibytes < math.MaxInt32) {
		return m, fmt.Sprintf("capability MemoryGB: %q is not a number", shown(capabilities["MemoryGB"]))
	}
	m = machine{name: sku.Name, capacity: capacityOf(cores, int64(gibibytes*1024)), capacityTypes: []string{catalog.OnDemand}}
	if m.arch = architectures[capabilities["CpuArchitectureType"]]; m.arch == "" {
		return m, fmt.Sprintf("capability CpuArchitectureType: %q is neither x64 nor Arm64", shown(capabilities["CpuArchitectureType"]))
	}
	// A part of a GPU is one for the machine.
	if gpus, err := strconv.ParseFloat(capabilities["GPUs"], 64); err == nil && gpus > 0 && gpus < 1000 {
		resource := options.GPUResource
		if azureAMD.MatchString(sku.Name) {
			resource = "amd.com/gpu"
		}
		m.capacity[resource] = count(int64(math.Ceil(gpus)))
	}
	if strings.EqualFold(capabilities["LowPriorityCapable"], "True") {
		m.capacityTypes = append(m.capacityTypes, catalog.Spot)
	}
	return m, ""
}

// azurePrice is one of the Retail Prices API's.
type azurePrice struct {
	ArmSkuName, SkuName, ProductName, Type, UnitOfMeasure, ArmRegionName, CurrencyCode string
	RetailPrice                                                                        json.Number
}

// readAzure reads the answer of the Retail Prices API, page by page, or items alone.
// https://learn.microsoft.com/en-us/rest/api/cost-management/retail-prices/azure-retail-prices
func (p *prices) readAzure(file *source) error {
	type page struct {
		Items []azurePrice
		azurePrice
	}
	return list(file, "Items", "an answer of the Retail Prices API", p.problem, func(where string, page *page) error {
		for _, price := range append(page.Items, page.azurePrice) {
			p.addAzure(where, &price)
		}
		return nil
	})
}

// addAzure takes the price of a Linux machine. Cloud Services are machines of another service, at other prices.
func (p *prices) addAzure(where string, each *azurePrice) {
	if each.Type != "Consumption" || each.UnitOfMeasure != "1 Hour" || each.ArmSkuName == "" ||
		strings.Contains(each.ProductName, "Windows") ||
		strings.Contains(strings.ReplaceAll(each.ProductName, " ", ""), "CloudServices") || strings.Contains(each.SkuName,
		"Low Priority") || !p.counts(each.ArmRegionName) {
		return
	}
	capacityType := catalog.OnDemand
	if strings.HasSuffix(each.SkuName, " Spot") {
		capacityType = catalog.Spot
	}
	p.set(where, each.ArmSkuName, capacityType, each.RetailPrice.String(), each.CurrencyCode)
}
