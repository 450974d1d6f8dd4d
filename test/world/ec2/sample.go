// SPDX-License-Identifier: Apache-2.0

package ec2

import (
	"encoding/hex"
	"net/netip"
	"time"
)

// Sample is a small region: three zones with a private subnet each, some instance types with their prices, an image for each
// architecture and Kubernetes version, a security group, and a capacity reservation. Prices are close to those of us-east-1.
//
// Images are named as those that Cluster API Provider AWS looks for. A version is such as v1.36.3.
func Sample(versions ...string) Config {
	const vpc = "vpc-0a1b2c3d4e5f60718"
	config := Config{
		Zones: []Zone{{"us-east-1a", "use1-az1"}, {"us-east-1b", "use1-az2"}, {"us-east-1c", "use1-az3"}},
		VPCs:  []VPC{{ID: vpc, CIDR: netip.MustParsePrefix("10.60.0.0/16")}},
		Subnets: []Subnet{
			{ID: "subnet-0a", VPC: vpc, Zone: "us-east-1a", CIDR: netip.MustParsePrefix("10.60.0.0/20")},
			{ID: "subnet-0b", VPC: vpc, Zone: "us-east-1b", CIDR: netip.MustParsePrefix("10.60.16.0/20")},
			{ID: "subnet-0c", VPC: vpc, Zone: "us-east-1c", CIDR: netip.MustParsePrefix("10.60.32.0/20")},
		},
		SecurityGroups: []SecurityGroup{{ID: "sg-0nodes", Name: "nodes", VPC: vpc}},
		Reservations:   []CapacityReservation{{ID: "cr-0general", Type: "m5.xlarge", Zone: "us-east-1b", Total: 2, Targeted: true}},
		Types: []InstanceType{
			{Name: "m5.large", VCPUs: 2, MemoryMiB: 8 << 10, OnDemandPrice: 0.096, SpotPrice: map[string]float64{"us-east-1a": 0.034, "us-east-1b": 0.036, "us-east-1c": 0.038}},
			{Name: "m5.xlarge", VCPUs: 4, MemoryMiB: 16 << 10, OnDemandPrice: 0.192, SpotPrice: map[string]float64{"us-east-1a": 0.07, "us-east-1b": 0.072}},
			{Name: "c5.large", VCPUs: 2, MemoryMiB: 4 << 10, OnDemandPrice: 0.085, SpotPrice: map[string]float64{"us-east-1a": 0.032, "us-east-1b": 0.033, "us-east-1c": 0.034}},
			{Name: "m6g.large", VCPUs: 2, MemoryMiB: 8 << 10, Architecture: "arm64", Zones: []string{"us-east-1a", "us-east-1b"}, OnDemandPrice: 0.077,
				SpotPrice: map[string]float64{"us-east-1a": 0.03}},
		},
	}
	for _, version := range versions {
		for _, architecture := range []string{"x86_64", "arm64"} {
			config.Images = append(config.Images, Image{
				ID: ImageID(version, architecture), Name: "capa-ami-ubuntu-24.04-" + version + "-" + architecture, Architecture: architecture, SnapshotGiB: 20,
				Created: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
			})
		}
	}
	return config
}

// ImageID is the ID of an image of Sample.
func ImageID(version, architecture string) string {
	if architecture == "arm64" {
		return "ami-1" + hexOf(version)
	}
	return "ami-0" + hexOf(version)
}

func hexOf(version string) string { return hex.EncodeToString([]byte(version)) }
