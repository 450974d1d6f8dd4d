// SPDX-License-Identifier: Apache-2.0

package ec2

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
)

// timeFormat is that of times in answers.
const timeFormat = "2006-01-02T15:04:05.000Z"

type stateXML struct {
	Code int    `xml:"code"`
	Name string `xml:"name"`
}

func newStateXML(state State) stateXML { return stateXML{codes[state], string(state)} }

type tagXML struct {
	Key   string `xml:"key"`
	Value string `xml:"value"`
}

func tagsXML(tags Tags) []tagXML {
	var list []tagXML
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		list = append(list, tagXML{key, tags[key]})
	}
	return list
}

type groupXML struct {
	ID   string `xml:"groupId"`
	Name string `xml:"groupName"`
}

func (s *state) groupsXML(ids []string) []groupXML {
	var list []groupXML
	for _, id := range ids {
		list = append(list, groupXML{id, s.groups[id].Name})
	}
	return list
}

type instanceXML struct {
	ID              string        `xml:"instanceId"`
	Image           string        `xml:"imageId"`
	State           stateXML      `xml:"instanceState"`
	PrivateDNSName  string        `xml:"privateDnsName,omitempty"`
	Reason          string        `xml:"reason"`
	KeyName         string        `xml:"keyName,omitempty"`
	LaunchIndex     int           `xml:"amiLaunchIndex"`
	Type            string        `xml:"instanceType"`
	Launched        string        `xml:"launchTime"`
	Zone            string        `xml:"placement>availabilityZone"`
	Tenancy         string        `xml:"placement>tenancy"`
	Monitoring      string        `xml:"monitoring>state"`
	Subnet          string        `xml:"subnetId,omitempty"`
	VPC             string        `xml:"vpcId,omitempty"`
	PrivateIP       string        `xml:"privateIpAddress,omitempty"`
	SourceDestCheck bool          `xml:"sourceDestCheck"`
	Groups          []groupXML    `xml:"groupSet>item"`
	ReasonState     *reasonXML    `xml:"stateReason"`
	Architecture    string        `xml:"architecture"`
	RootType        string        `xml:"rootDeviceType"`
	RootName        string        `xml:"rootDeviceName"`
	Devices         []deviceXML   `xml:"blockDeviceMapping>item"`
	Virtualization  string        `xml:"virtualizationType"`
	Lifecycle       string        `xml:"instanceLifecycle,omitempty"`
	SpotRequest     string        `xml:"spotInstanceRequestId,omitempty"`
	ClientToken     string        `xml:"clientToken"`
	Tags            []tagXML      `xml:"tagSet>item"`
	Hypervisor      string        `xml:"hypervisor"`
	Interfaces      []attachedXML `xml:"networkInterfaceSet>item"`
	Profile         *profileXML   `xml:"iamInstanceProfile"`
	EBSOptimized    bool          `xml:"ebsOptimized"`
	ENASupport      bool          `xml:"enaSupport"`
	Reservation     string        `xml:"capacityReservationId,omitempty"`
	Preference      string        `xml:"capacityReservationSpecification>capacityReservationPreference"`
	Metadata        metadataXML   `xml:"metadataOptions"`
}

type reasonXML struct {
	Code    string `xml:"code"`
	Message string `xml:"message"`
}

type profileXML struct {
	ARN string `xml:"arn"`
	ID  string `xml:"id"`
}

type metadataXML struct {
	State    string `xml:"state"`
	Tokens   string `xml:"httpTokens"`
	HopLimit int    `xml:"httpPutResponseHopLimit"`
	Endpoint string `xml:"httpEndpoint"`
	Tags     string `xml:"instanceMetadataTags"`
}

func newMetadataXML(m MetadataOptions) metadataXML {
	return metadataXML{"applied", m.Tokens, m.HopLimit, m.Endpoint, m.Tags}
}

type deviceXML struct {
	Name   string `xml:"deviceName"`
	Volume string `xml:"ebs>volumeId"`
	Status string `xml:"ebs>status"`
	Delete bool   `xml:"ebs>deleteOnTermination"`
}

type attachedXML struct {
	ID             string     `xml:"networkInterfaceId"`
	Subnet         string     `xml:"subnetId"`
	VPC            string     `xml:"vpcId"`
	Status         string     `xml:"status"`
	PrivateIP      string     `xml:"privateIpAddress"`
	PrivateDNSName string     `xml:"privateDnsName"`
	Groups         []groupXML `xml:"groupSet>item"`
	DeviceIndex    int        `xml:"attachment>deviceIndex"`
	AttachStatus   string     `xml:"attachment>status"`
}

type reservationXML struct {
	ID        string        `xml:"reservationId"`
	Owner     string        `xml:"ownerId"`
	Instances []instanceXML `xml:"instancesSet>item"`
}

// volume is the ID of an instance's root volume.
func (i *Instance) volume() string { return "vol-" + i.ID[len("i-"):] }

func (s *Server) instanceXML(i *instance) instanceXML {
	x := instanceXML{
		ID: i.ID, Image: i.Image, State: newStateXML(i.State), KeyName: i.KeyName, Type: i.Type, Launched: i.Launched.Format(timeFormat),
		Zone: i.Zone, Tenancy: "default", Monitoring: "disabled", SourceDestCheck: true, Architecture: i.Architecture,
		RootType: "ebs", RootName: rootDevice, Virtualization: "hvm", SpotRequest: i.SpotRequest, Tags: tagsXML(i.Tags), Hypervisor: "xen",
		ENASupport: true, Reservation: i.CapacityReservation, Preference: i.CapacityPreference,
		Metadata: newMetadataXML(i.Metadata),
	}
	if i.Spot {
		x.Lifecycle = "spot"
	}
	if i.ReasonCode != "" {
		x.ReasonState, x.Reason = &reasonXML{i.ReasonCode, i.ReasonMessage}, i.ReasonMessage
	}
	if i.InstanceProfile != "" {
		x.Profile = &profileXML{fmt.Sprintf("arn:aws:iam::%s:instance-profile/%s", s.config.Account, i.InstanceProfile), "AIPA" + i.InstanceProfile}
	}
	if i.State == Terminated { // of which EC2 forgets the network
		return x
	}
	x.Subnet, x.VPC, x.PrivateIP, x.PrivateDNSName, x.Groups = i.Subnet, i.VPC, i.PrivateIP, i.PrivateDNSName, s.groupsXML(i.SecurityGroups)
	x.Devices = []deviceXML{{rootDevice, i.volume(), "attached", true}}
	x.Interfaces = []attachedXML{{
		ID: i.NetworkInterface, Subnet: i.Subnet, VPC: i.VPC, Status: "in-use", PrivateIP: i.PrivateIP, PrivateDNSName: i.PrivateDNSName,
		Groups: x.Groups, AttachStatus: "attached",
	}}
	return x
}

func (s *Server) reservationXML(ids []string) reservationXML {
	x := reservationXML{Owner: s.config.Account}
	for _, id := range ids {
		i := s.instances[id]
		x.ID = i.Reservation
		x.Instances = append(x.Instances, s.instanceXML(i))
	}
	return x
}

func (i *instance) fields() fields {
	lifecycle := []string(nil)
	if i.Spot {
		lifecycle = one("spot")
	}
	return fields{
		"instance-id": one(i.ID), "instance-state-name": one(string(i.State)), "instance-state-code": one(strconv.Itoa(codes[i.State])),
		"instance-type": one(i.Type), "availability-zone": one(i.Zone), "subnet-id": one(i.Subnet), "vpc-id": one(i.VPC), "image-id": one(i.Image),
		"private-dns-name": one(i.PrivateDNSName), "private-ip-address": one(i.PrivateIP), "instance-lifecycle": lifecycle,
		"instance.group-id": i.SecurityGroups, "capacity-reservation-id": one(i.CapacityReservation),
	}.tagged(i.Tags)
}

func (s *Server) describeInstances(p Params) (any, error) {
	if err := s.mustExist(p.List("InstanceId")); err != nil {
		return nil, err
	}
	list := byID(s.instances)
	slices.SortFunc(list, func(a, b *instance) int { return a.number - b.number })
	answer := struct {
		Reservations []reservationXML `xml:"reservationSet>item"`
	}{}
	for _, i := range list {
		passes, err := matches(p, i.fields())
		if err != nil {
			return nil, err
		}
		if !passes || !wanted(p, "InstanceId", i.ID) {
			continue
		}
		last := len(answer.Reservations) - 1
		if last >= 0 && answer.Reservations[last].ID == i.Reservation {
			answer.Reservations[last].Instances = append(answer.Reservations[last].Instances, s.instanceXML(i))
			continue
		}
		answer.Reservations = append(answer.Reservations, s.reservationXML([]string{i.ID}))
	}
	if len(list) == 0 { // filters are checked even where there is nothing to filter
		if _, err := matches(p, (&instance{}).fields()); err != nil {
			return nil, err
		}
	}
	return answer, nil
}

func (s *Server) describeAvailabilityZones(p Params) (any, error) {
	type zone struct {
		Name    string `xml:"zoneName"`
		ID      string `xml:"zoneId"`
		State   string `xml:"zoneState"`
		Region  string `xml:"regionName"`
		Type    string `xml:"zoneType"`
		OptIn   string `xml:"optInStatus"`
		Group   string `xml:"groupName"`
		Network string `xml:"networkBorderGroup"`
	}
	answer := struct {
		Zones []zone `xml:"availabilityZoneInfo>item"`
	}{}
	for _, z := range s.config.Zones {
		passes, err := matches(p, fields{
			"zone-name": one(z.Name), "zone-id": one(z.ID), "state": one("available"), "zone-type": one("availability-zone"), "region-name": one(s.config.Region),
			"opt-in-status": one("opt-in-not-required"), "group-name": one(s.config.Region),
		})
		if err != nil {
			return nil, err
		}
		if passes && wanted(p, "ZoneName", z.Name) && wanted(p, "ZoneId", z.ID) {
			answer.Zones = append(answer.Zones, zone{z.Name, z.ID, "available", s.config.Region, "availability-zone", "opt-in-not-required", s.config.Region, s.config.Region})
		}
	}
	return answer, nil
}

// dhcpOptions is the ID of every VPC's DHCP options, which are the region's own.
const dhcpOptions = "dopt-0region"

func (s *Server) describeVpcs(p Params) (any, error) {
	if err := known(p, "VpcId", s.vpcs, "InvalidVpcID.NotFound", "The vpc ID '%s' does not exist"); err != nil {
		return nil, err
	}
	type vpc struct {
		ID      string   `xml:"vpcId"`
		Owner   string   `xml:"ownerId"`
		State   string   `xml:"state"`
		CIDR    string   `xml:"cidrBlock"`
		DHCP    string   `xml:"dhcpOptionsId"`
		Tenancy string   `xml:"instanceTenancy"`
		Default bool     `xml:"isDefault"`
		Tags    []tagXML `xml:"tagSet>item"`
	}
	answer := struct {
		VPCs []vpc `xml:"vpcSet>item"`
	}{}
	for _, v := range byID(s.vpcs) {
		passes, err := matches(p, fields{"vpc-id": one(v.ID), "state": one("available"), "cidr": one(v.CIDR.String()), "owner-id": one(s.config.Account)}.tagged(v.Tags))
		if err != nil {
			return nil, err
		}
		if passes && wanted(p, "VpcId", v.ID) {
			answer.VPCs = append(answer.VPCs, vpc{v.ID, s.config.Account, "available", v.CIDR.String(), dhcpOptions, "default", false, tagsXML(v.Tags)})
		}
	}
	return answer, nil
}

func (s *Server) describeDhcpOptions(p Params) (any, error) {
	if err := known(p, "DhcpOptionsId", map[string]bool{dhcpOptions: true}, "InvalidDhcpOptionID.NotFound", "The dhcpOption ID '%s' does not exist"); err != nil {
		return nil, err
	}
	type option struct {
		Key    string   `xml:"key"`
		Values []string `xml:"valueSet>item>value"`
	}
	type options struct {
		ID      string   `xml:"dhcpOptionsId"`
		Options []option `xml:"dhcpConfigurationSet>item"`
	}
	return struct {
		Options []options `xml:"dhcpOptionsSet>item"`
	}{[]options{{dhcpOptions, []option{{"domain-name", one(s.domain())}, {"domain-name-servers", one("AmazonProvidedDNS")}}}}}, nil
}

// domain is that of the names by address that EC2 gives instances.
func (s *Server) domain() string {
	if s.config.Region == "us-east-1" {
		return "ec2.internal"
	}
	return s.config.Region + ".compute.internal"
}

func (s *Server) describeSubnets(p Params) (any, error) {
	if err := known(p, "SubnetId", s.subnets, "InvalidSubnetID.NotFound", "The subnet ID '%s' does not exist"); err != nil {
		return nil, err
	}
	type subnet struct {
		ID      string   `xml:"subnetId"`
		ARN     string   `xml:"subnetArn"`
		State   string   `xml:"state"`
		VPC     string   `xml:"vpcId"`
		CIDR    string   `xml:"cidrBlock"`
		Free    int      `xml:"availableIpAddressCount"`
		Zone    string   `xml:"availabilityZone"`
		ZoneID  string   `xml:"availabilityZoneId"`
		Owner   string   `xml:"ownerId"`
		Default bool     `xml:"defaultForAz"`
		Public  bool     `xml:"mapPublicIpOnLaunch"`
		IPv6    bool     `xml:"assignIpv6AddressOnCreation"`
		Tags    []tagXML `xml:"tagSet>item"`
	}
	answer := struct {
		Subnets []subnet `xml:"subnetSet>item"`
	}{}
	for _, n := range byID(s.subnets) {
		passes, err := matches(p, fields{
			"subnet-id": one(n.ID), "vpc-id": one(n.VPC), "availability-zone": one(n.Zone), "availability-zone-id": one(s.zoneID(n.Zone)),
			"state": one("available"), "cidr-block": one(n.CIDR.String()), "cidr": one(n.CIDR.String()), "owner-id": one(s.config.Account),
		}.tagged(n.Tags))
		if err != nil {
			return nil, err
		}
		if passes && wanted(p, "SubnetId", n.ID) {
			answer.Subnets = append(answer.Subnets, subnet{
				ID: n.ID, ARN: s.arn("subnet", n.ID), State: "available", VPC: n.VPC, CIDR: n.CIDR.String(), Free: s.free(n),
				Zone: n.Zone, ZoneID: s.zoneID(n.Zone), Owner: s.config.Account, Public: n.Public, Tags: tagsXML(n.Tags),
			})
		}
	}
	return answer, nil
}

// arn is the name of a resource of EC2.
func (s *Server) arn(kind, id string) string {
	return fmt.Sprintf("arn:aws:ec2:%s:%s:%s/%s", s.config.Region, s.config.Account, kind, id)
}

// zoneID is the ID of a zone.
func (s *Server) zoneID(name string) string {
	for _, zone := range s.config.Zones {
		if zone.Name == name {
			return zone.ID
		}
	}
	return ""
}

func (s *Server) describeSecurityGroups(p Params) (any, error) {
	if err := known(p, "GroupId", s.groups, "InvalidGroup.NotFound", "The security group '%s' does not exist"); err != nil {
		return nil, err
	}
	type group struct {
		groupXML
		Owner       string   `xml:"ownerId"`
		Description string   `xml:"groupDescription"`
		VPC         string   `xml:"vpcId"`
		Tags        []tagXML `xml:"tagSet>item"`
	}
	answer := struct {
		Groups []group `xml:"securityGroupInfo>item"`
	}{}
	for _, g := range byID(s.groups) {
		passes, err := matches(p, fields{"group-id": one(g.ID), "group-name": one(g.Name), "vpc-id": one(g.VPC), "owner-id": one(s.config.Account)}.tagged(g.Tags))
		if err != nil {
			return nil, err
		}
		if passes && wanted(p, "GroupId", g.ID) {
			answer.Groups = append(answer.Groups, group{groupXML{g.ID, g.Name}, s.config.Account, g.Name, g.VPC, tagsXML(g.Tags)})
		}
	}
	return answer, nil
}

func (s *Server) describeCapacityReservations(p Params) (any, error) {
	if err := known(p, "CapacityReservationId", s.capacity, "InvalidCapacityReservationId.NotFound", "The capacity reservation '%s' does not exist"); err != nil {
		return nil, err
	}
	type reservation struct {
		ID        string   `xml:"capacityReservationId"`
		ARN       string   `xml:"capacityReservationArn"`
		Owner     string   `xml:"ownerId"`
		Type      string   `xml:"instanceType"`
		Platform  string   `xml:"instancePlatform"`
		Zone      string   `xml:"availabilityZone"`
		Tenancy   string   `xml:"tenancy"`
		Total     int      `xml:"totalInstanceCount"`
		Available int      `xml:"availableInstanceCount"`
		State     string   `xml:"state"`
		End       string   `xml:"endDateType"`
		Match     string   `xml:"instanceMatchCriteria"`
		Kind      string   `xml:"reservationType"`
		Tags      []tagXML `xml:"tagSet>item"`
	}
	answer := struct {
		Reservations []reservation `xml:"capacityReservationSet>item"`
	}{}
	for _, r := range byID(s.capacity) {
		match := "open"
		if r.Targeted {
			match = "targeted"
		}
		passes, err := matches(p, fields{
			"state": one("active"), "instance-type": one(r.Type), "availability-zone": one(r.Zone), "owner-id": one(s.config.Account),
			"instance-match-criteria": one(match), "tenancy": one("default"),
		}.tagged(r.Tags))
		if err != nil {
			return nil, err
		}
		if passes && wanted(p, "CapacityReservationId", r.ID) {
			answer.Reservations = append(answer.Reservations, reservation{
				r.ID, s.arn("capacity-reservation", r.ID), s.config.Account, r.Type, "Linux/UNIX", r.Zone, "default", r.Total, r.Total - s.used(r.ID),
				"active", "unlimited", match, "default", tagsXML(r.Tags),
			})
		}
	}
	return answer, nil
}

func (s *Server) describeSpotPriceHistory(p Params) (any, error) {
	type price struct {
		Type    string `xml:"instanceType"`
		Product string `xml:"productDescription"`
		Price   string `xml:"spotPrice"`
		Time    string `xml:"timestamp"`
		Zone    string `xml:"availabilityZone"`
	}
	answer := struct {
		Prices []price `xml:"spotPriceHistorySet>item"`
	}{}
	for _, t := range byID(s.types) {
		if !wanted(p, "InstanceType", t.Name) {
			continue
		}
		for _, zone := range slices.Sorted(maps.Keys(t.SpotPrice)) {
			passes, err := matches(p, fields{"availability-zone": one(zone), "instance-type": one(t.Name), "product-description": one("Linux/UNIX")})
			if err != nil {
				return nil, err
			}
			if passes && (p.Get("AvailabilityZone") == "" || p.Get("AvailabilityZone") == zone) && wanted(p, "ProductDescription", "Linux/UNIX") {
				answer.Prices = append(answer.Prices, price{t.Name, "Linux/UNIX", strconv.FormatFloat(t.SpotPrice[zone], 'f', 6, 64), time.Now().UTC().Format(timeFormat), zone})
			}
		}
	}
	return answer, nil
}
