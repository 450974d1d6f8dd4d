// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"strconv"
	"strings"
)

// awsFactors are the normalization factors of EC2's sizes.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/apply_ri.html
var awsFactors = map[string]float64{"nano": 0.25, "micro": 0.5, "small": 1, "medium": 2, "large": 4, "xlarge": 8}

// awsSize splits an EC2 instance type into its family and its normalization factor; zero for none, as of metal.
func awsSize(instanceType string) (family string, factor float64) {
	family, size, _ := strings.Cut(instanceType, ".")
	if factor, ok := awsFactors[size]; ok {
		return family, factor
	}
	if times, ok := strings.CutSuffix(size, "xlarge"); ok {
		if n, err := strconv.Atoi(times); err == nil && n > 0 && n < 1000 {
			return family, 8 * float64(n)
		}
	}
	return family, 0
}

// azureSize splits a size of Azure's, such as Standard_D4s_v5, into its series and its number of vCPUs, to which the ratios of a
// flexibility group are proportional. Zero where they aren't: of sizes with constrained vCPUs, and of bursting ones (B).
// https://learn.microsoft.com/en-us/azure/virtual-machines/reserved-vm-instance-size-flexibility
func azureSize(size string) (series string, vcpus float64) {
	at := strings.IndexAny(size, "0123456789")
	if at <= 0 || strings.Contains(size, "-") || strings.HasPrefix(size, "Standard_B") {
		return size, 0
	}
	end := at
	for end < len(size) && size[end] >= '0' && size[end] <= '9' {
		end++
	}
	n, err := strconv.Atoi(size[at:end])
	if err != nil || n <= 0 || n > 100_000 {
		return size, 0
	}
	return size[:at] + "#" + size[end:], float64(n)
}

// ratio is how many of a cover's instances a machine of a type takes; zero for one that isn't of its series.
func (c *Cover) ratio(instanceType string) float64 {
	if own, listed := c.Ratios[c.InstanceType]; listed && own > 0 {
		return c.Ratios[instanceType] / own
	}
	if instanceType == c.InstanceType {
		return 1
	}
	size := awsSize
	if c.Flexible == AzureReservation {
		size = azureSize
	}
	series, own := size(c.InstanceType)
	other, factor := size(instanceType)
	if series != other || own == 0 {
		return 0
	}
	return factor / own
}
