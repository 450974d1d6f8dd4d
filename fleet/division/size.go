// SPDX-License-Identifier: Apache-2.0

package division

import (
	"cmp"
	_ "embed" // the clouds' published lists
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

var (
	//go:embed sizes/aws.txt
	awsList string
	//go:embed sizes/azure.txt
	azureList string
	//go:embed sizes/gcp.txt
	gcpList string

	// listed are the sizes of EC2's bare metal and of Azure's groups, and the GiB of a vCPU of Google Cloud. A family of EC2 with the ratio
	// 0 has no size flexibility.
	listed = read(awsList + azureList + gcpList)
)

// size is the ratio of an instance type in its series.
type size struct {
	series string
	ratio  float64
}

// read reads a list, in which a line is a series.
func read(list string) map[string]size {
	sizes := map[string]size{}
	for line := range strings.Lines(list) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		for _, entry := range strings.Fields(line) {
			name, ratio, _ := strings.Cut(entry, "=")
			number, _ := strconv.ParseFloat(ratio, 64)
			sizes[name] = size{line, number}
		}
	}
	return sizes
}

// awsFactors are the normalization factors of EC2's sizes: see sizes/aws.txt.
var awsFactors = map[string]float64{"nano": 0.25, "micro": 0.5, "small": 1, "medium": 2, "large": 4, "xlarge": 8}

var (
	// awsXLarge matches sizes such as 24xlarge and metal-24xl, whose factor is a multiple of xlarge's.
	awsXLarge = regexp.MustCompile(`^(?:([1-9][0-9]{0,2})xlarge|metal-([1-9][0-9]{0,2})xl)$`)
	// azureCurrent matches the sizes of the series D, E and F from version 4 on, whose ratio is their number of vCPUs: neither those with
	// constrained vCPUs nor isolated ones.
	azureCurrent = regexp.MustCompile(`^(Standard_[DEF])([1-9][0-9]{0,2})([a-hj-z]*_v(?:[4-9]|[1-9][0-9]))$`)
	// gcpSize matches a machine type of Google Cloud with its memory by name.
	gcpSize = regexp.MustCompile(`^([a-z][0-9]+[a-z]*)-(standard|highmem|highcpu)-([1-9][0-9]{0,3})$`)
)

// sizeOf is the series of an instance type, and its ratio in it; false where it isn't published.
func sizeOf(kind Kind, instanceType string) (size, bool) {
	if kind == AzureReservation {
		if name, standard := strings.CutPrefix(instanceType, "Standard_"); standard && listed[name].ratio > 0 {
			return listed[name], true
		}
		parts := azureCurrent.FindStringSubmatch(instanceType)
		if parts == nil {
			return size{}, false
		}
		vcpus, _ := strconv.ParseFloat(parts[2], 64)
		return size{parts[1] + "#" + parts[3], vcpus}, true
	}
	family, name, _ := strings.Cut(instanceType, ".")
	factor, known := awsFactors[name]
	if name == "metal" {
		factor, known = listed[instanceType].ratio, listed[instanceType].ratio > 0
	}
	if parts := awsXLarge.FindStringSubmatch(name); parts != nil {
		times, _ := strconv.ParseFloat(parts[1]+parts[2], 64)
		factor, known = 8*times, true
	}
	base, _, _ := strings.Cut(family, "-")
	if s, found := listed[base]; found && s.ratio == 0 {
		family = instanceType // of no other's series
	}
	return size{family, factor}, known || family == instanceType
}

// CheckSize returns an error if the sizes of a flexible commitment's series aren't known.
func (c *Commitment) CheckSize() error {
	if _, known := sizeOf(c.Kind, c.InstanceType); !known && c.flexible() && len(c.Ratios) == 0 {
		return fmt.Errorf("%s isn't in the cloud's list of sizes that AutoNode has; set ratios, or sizeFlexibility: \"Off\"", c.InstanceType)
	}
	return nil
}

// ratio is how many of a cover's instances a machine of a type takes; zero for one that isn't of its series.
func (c *Cover) ratio(instanceType string) float64 {
	if unit, listed := c.Ratios[c.InstanceType]; listed && unit > 0 {
		return c.Ratios[instanceType] / unit
	}
	if instanceType == c.InstanceType {
		return 1
	}
	unit, known := sizeOf(c.Kind, c.InstanceType)
	other, also := sizeOf(c.Kind, instanceType)
	if !known || !also || unit.series != other.series || unit.ratio == 0 {
		return 0
	}
	return other.ratio / unit.ratio
}

// Resources are the vCPUs, in thousandths, and the memory, in bytes, of a machine type of Google Cloud, by its name; zero for any other.
func Resources(instanceType string) (vcpus, memory int64) {
	parts := gcpSize.FindStringSubmatch(instanceType)
	if parts == nil {
		return 0, 0
	}
	count, _ := strconv.ParseInt(parts[3], 10, 64)
	gib := cmp.Or(listed[parts[1]+"-"+parts[2]], listed[parts[2]]).ratio
	return count * 1000, int64(gib * float64(count) * (1 << 30))
}
