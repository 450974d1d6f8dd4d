// SPDX-License-Identifier: Apache-2.0

package ec2

import (
	"fmt"
	"strconv"
	"strings"
)

// rootDevice is the name of the root volume of images and instances.
const rootDevice = "/dev/xvda"

func (s *Server) describeInstanceTypes(p Params) (any, error) {
	var unknown []string
	for _, name := range p.List("InstanceType") {
		if _, ok := s.types[name]; !ok {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		return nil, &Error{Code: "InvalidInstanceType", Message: fmt.Sprintf("The following supplied instance types do not exist: [%s]", strings.Join(unknown, ", "))}
	}
	type instanceType struct {
		Name           string   `xml:"instanceType"`
		Current        bool     `xml:"currentGeneration"`
		FreeTier       bool     `xml:"freeTierEligible"`
		Usage          []string `xml:"supportedUsageClasses>item"`
		Roots          []string `xml:"supportedRootDeviceTypes>item"`
		Virtualization []string `xml:"supportedVirtualizationTypes>item"`
		BareMetal      bool     `xml:"bareMetal"`
		Hypervisor     string   `xml:"hypervisor"`
		Architectures  []string `xml:"processorInfo>supportedArchitectures>item"`
		ClockSpeed     float64  `xml:"processorInfo>sustainedClockSpeedInGhz"`
		Manufacturer   string   `xml:"processorInfo>manufacturer"`
		VCPUs          int      `xml:"vCpuInfo>defaultVCpus"`
		Cores          int      `xml:"vCpuInfo>defaultCores"`
		Threads        int      `xml:"vCpuInfo>defaultThreadsPerCore"`
		MemoryMiB      int64    `xml:"memoryInfo>sizeInMiB"`
		LocalStorage   bool     `xml:"instanceStorageSupported"`
		EBSOptimized   string   `xml:"ebsInfo>ebsOptimizedSupport"`
		EBSEncryption  string   `xml:"ebsInfo>encryptionSupport"`
		EBSBandwidth   int      `xml:"ebsInfo>ebsOptimizedInfo>maximumBandwidthInMbps"`
		NVMe           string   `xml:"ebsInfo>nvmeSupport"`
		Network        string   `xml:"networkInfo>networkPerformance"`
		Interfaces     int      `xml:"networkInfo>maximumNetworkInterfaces"`
		Cards          int      `xml:"networkInfo>maximumNetworkCards"`
		Card           int      `xml:"networkInfo>defaultNetworkCardIndex"`
		FirstCard      struct {
			Index      int     `xml:"networkCardIndex"`
			Network    string  `xml:"networkPerformance"`
			Interfaces int     `xml:"maximumNetworkInterfaces"`
			Baseline   float64 `xml:"baselineBandwidthInGbps"`
			Peak       float64 `xml:"peakBandwidthInGbps"`
		} `xml:"networkInfo>networkCards>item"`
		IPv4       int    `xml:"networkInfo>ipv4AddressesPerInterface"`
		IPv6       int    `xml:"networkInfo>ipv6AddressesPerInterface"`
		IPv6Ok     bool   `xml:"networkInfo>ipv6Supported"`
		ENA        string `xml:"networkInfo>enaSupport"`
		EFA        bool   `xml:"networkInfo>efaSupported"`
		Encryption bool   `xml:"networkInfo>encryptionInTransitSupported"`
		Hibernate  bool   `xml:"hibernationSupported"`
		Burstable  bool   `xml:"burstablePerformanceSupported"`
		Dedicated  bool   `xml:"dedicatedHostsSupported"`
		Recovery   bool   `xml:"autoRecoverySupported"`
	}
	answer := struct {
		Types []instanceType `xml:"instanceTypeSet>item"`
	}{}
	for _, t := range byID(s.types) {
		passes, err := matches(p, fields{
			"instance-type": one(t.Name), "processor-info.supported-architecture": one(t.Architecture), "current-generation": one("true"),
			"bare-metal": one("false"), "supported-virtualization-type": one("hvm"), "supported-usage-class": t.usageClasses(),
			"vcpu-info.default-vcpus": one(strconv.Itoa(t.VCPUs)), "memory-info.size-in-mib": one(strconv.FormatInt(t.MemoryMiB, 10)),
		})
		if err != nil {
			return nil, err
		}
		if !passes || !wanted(p, "InstanceType", t.Name) {
			continue
		}
		x := instanceType{
			Name: t.Name, Current: true, Usage: t.usageClasses(), Roots: one("ebs"), Virtualization: one("hvm"), Hypervisor: "nitro",
			Architectures: one(t.Architecture), ClockSpeed: 3.1, Manufacturer: "Intel", VCPUs: t.VCPUs, Cores: max(1, t.VCPUs/2), Threads: 2,
			MemoryMiB: t.MemoryMiB, EBSOptimized: "default", EBSEncryption: "supported", EBSBandwidth: 4750, NVMe: "required",
			Network: "Up to 10 Gigabit", Interfaces: 4, Cards: 1, IPv4: 15, IPv6: 15, IPv6Ok: true, ENA: "required", Encryption: true, Recovery: true,
		}
		x.FirstCard.Network, x.FirstCard.Interfaces, x.FirstCard.Baseline, x.FirstCard.Peak = x.Network, x.Interfaces, 1.25, 10
		answer.Types = append(answer.Types, x)
	}
	return answer, nil
}

func (t InstanceType) usageClasses() []string {
	if len(t.SpotPrice) > 0 {
		return []string{"on-demand", "spot"}
	}
	return one("on-demand")
}

func (s *Server) describeInstanceTypeOfferings(p Params) (any, error) {
	kind := p.Get("LocationType")
	type offering struct {
		Type     string `xml:"instanceType"`
		Kind     string `xml:"locationType"`
		Location string `xml:"location"`
	}
	answer := struct {
		Offerings []offering `xml:"instanceTypeOfferingSet>item"`
	}{}
	for _, t := range byID(s.types) {
		var locations []string
		switch kind {
		case "", "region":
			kind, locations = "region", one(s.config.Region)
		case "availability-zone", "availability-zone-id":
			for _, zone := range s.config.Zones {
				if !t.soldIn(zone.Name) {
					continue
				}
				location := zone.Name
				if kind == "availability-zone-id" {
					location = zone.ID
				}
				locations = append(locations, location)
			}
		default:
			return nil, unimplemented("InvalidParameterValue", "The location type %s isn't supported.", kind)
		}
		for _, location := range locations {
			passes, err := matches(p, fields{"location": one(location), "instance-type": one(t.Name)})
			if err != nil {
				return nil, err
			}
			if passes {
				answer.Offerings = append(answer.Offerings, offering{t.Name, kind, location})
			}
		}
	}
	return answer, nil
}

func (s *Server) describeImages(p Params) (any, error) {
	if err := known(p, "ImageId", s.images, "InvalidAMIID.NotFound", "The image id '[%s]' does not exist"); err != nil {
		return nil, err
	}
	type device struct {
		Name     string `xml:"deviceName"`
		Snapshot string `xml:"ebs>snapshotId"`
		Size     int    `xml:"ebs>volumeSize"`
		Delete   bool   `xml:"ebs>deleteOnTermination"`
		Type     string `xml:"ebs>volumeType"`
	}
	type image struct {
		ID             string   `xml:"imageId"`
		Location       string   `xml:"imageLocation"`
		State          string   `xml:"imageState"`
		Owner          string   `xml:"imageOwnerId"`
		Created        string   `xml:"creationDate"`
		Public         bool     `xml:"isPublic"`
		Architecture   string   `xml:"architecture"`
		Type           string   `xml:"imageType"`
		Platform       string   `xml:"platformDetails"`
		Name           string   `xml:"name"`
		RootType       string   `xml:"rootDeviceType"`
		RootName       string   `xml:"rootDeviceName"`
		Devices        []device `xml:"blockDeviceMapping>item"`
		Virtualization string   `xml:"virtualizationType"`
		ENA            bool     `xml:"enaSupport"`
		Tags           []tagXML `xml:"tagSet>item"`
	}
	answer := struct {
		Images []image `xml:"imagesSet>item"`
	}{}
	for _, i := range byID(s.images) {
		passes, err := matches(p, fields{
			"image-id": one(i.ID), "name": one(i.Name), "owner-id": one(i.Owner), "state": one("available"), "architecture": one(i.Architecture),
			"virtualization-type": one("hvm"), "root-device-type": one("ebs"), "is-public": one("true"),
		}.tagged(i.Tags))
		if err != nil {
			return nil, err
		}
		owners := p.List("Owner")
		if !passes || !wanted(p, "ImageId", i.ID) || len(owners) > 0 && !anyMatches(owners, s.ownersOf(i)) {
			continue
		}
		answer.Images = append(answer.Images, image{
			ID: i.ID, Location: i.Owner + "/" + i.Name, State: "available", Owner: i.Owner, Created: i.Created.UTC().Format(timeFormat), Public: true,
			Architecture: i.Architecture, Type: "machine", Platform: "Linux/UNIX", Name: i.Name, RootType: "ebs", RootName: rootDevice,
			Devices: []device{{rootDevice, "snap-" + strings.TrimPrefix(i.ID, "ami-"), i.SnapshotGiB, true, "gp3"}}, Virtualization: "hvm", ENA: true,
			Tags: tagsXML(i.Tags),
		})
	}
	return answer, nil
}

// ownersOf are the names by which the owner of an image can be asked for.
func (s *Server) ownersOf(i Image) []string {
	if i.Owner == s.config.Account {
		return []string{i.Owner, "self"}
	}
	return []string{i.Owner}
}
