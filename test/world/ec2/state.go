// SPDX-License-Identifier: Apache-2.0

package ec2

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Tags of a resource.
type Tags map[string]string

// Zone is an availability zone, such as us-east-1a with the ID use1-az1.
type Zone struct {
	Name, ID string
}

// InstanceType is what an instance can have.
type InstanceType struct {
	Name string
	// VCPUs and MemoryMiB are what EC2 reports; the hypervisor keeps some of the memory.
	VCPUs     int
	MemoryMiB int64
	// Architecture is x86_64 or arm64. Default: x86_64.
	Architecture string
	// Zones are those in which it is offered. Default: all.
	Zones []string
	// OnDemandPrice is in dollars an hour. SpotPrice is too, by zone; a zone without one offers no spot capacity.
	OnDemandPrice float64
	SpotPrice     map[string]float64
}

func (t InstanceType) soldIn(zone string) bool {
	return len(t.Zones) == 0 || slices.Contains(t.Zones, zone)
}

// Image is an AMI.
type Image struct {
	ID, Name string
	// Architecture is x86_64 or arm64. Default: x86_64.
	Architecture string
	// Owner is an account's number. Default: Config.Account.
	Owner string
	// SnapshotGiB is the size of its root volume. Default: 8.
	SnapshotGiB int
	Created     time.Time
	Tags        Tags
}

// VPC is a network.
type VPC struct {
	ID   string
	CIDR netip.Prefix
	Tags Tags
}

// Subnet of a VPC.
type Subnet struct {
	ID, VPC, Zone string
	// CIDR is its range of IPv4 addresses, of which the first four and the last are EC2's own.
	CIDR netip.Prefix
	// Public: instances get a public address unless they ask for none. It is no more than said.
	Public bool
	Tags   Tags
}

// SecurityGroup of a VPC.
type SecurityGroup struct {
	ID, Name, VPC string
	Tags          Tags
}

// CapacityReservation is an on-demand capacity reservation.
type CapacityReservation struct {
	ID, Type, Zone string
	// Total is how many instances it holds.
	Total int
	// Targeted: only instances that name it use it.
	Targeted bool
	Tags     Tags
}

// MetadataOptions are those of an instance's metadata service.
type MetadataOptions struct {
	// Tokens is optional or required, Endpoint and Tags are enabled or disabled.
	Tokens, Endpoint, Tags string
	HopLimit               int
}

// State is that of an instance.
type State string

// The states of instances.
const (
	Pending      State = "pending"
	Running      State = "running"
	ShuttingDown State = "shutting-down"
	Terminated   State = "terminated"
)

// codes are those that EC2 gives the states.
var codes = map[State]int{Pending: 0, Running: 16, ShuttingDown: 32, Terminated: 48}

// Instance as EC2 keeps it.
type Instance struct {
	// ID is such as i-0123456789abcdef0; Reservation is that of the RunInstances, and no capacity reservation.
	ID, Reservation  string
	Type, Image      string
	Architecture     string
	Subnet, VPC      string
	Zone             string
	PrivateIP        string
	PrivateDNSName   string
	NetworkInterface string
	SecurityGroups   []string
	// Spot instances have a MaxPrice, in dollars an hour, where their user gave one, and a SpotRequest.
	Spot        bool
	MaxPrice    string
	SpotRequest string
	// CapacityReservation is the one that it uses; "" if none. CapacityPreference is what it was launched with: open, none or
	// capacity-reservations-only.
	CapacityReservation, CapacityPreference string
	InstanceProfile                         string
	KeyName                                 string
	// UserData is what the machine reads, without base64.
	UserData []byte
	Tags     Tags
	// ImageName, VCPUs, MemoryMiB and RootGiB are what its image and its type say, and the size of its root volume.
	ImageName string
	VCPUs     int
	MemoryMiB int64
	RootGiB   int
	Metadata  MetadataOptions
	// NetworkInterfaceTags are those of its network interface, VolumeTags those of its volumes.
	NetworkInterfaceTags, VolumeTags Tags

	State                     State
	ReasonCode, ReasonMessage string
	Launched                  time.Time
}

func (i *Instance) live() bool { return i.State == Pending || i.State == Running }

// clone returns a copy that shares nothing.
func (i *Instance) clone() Instance {
	c := *i
	c.SecurityGroups, c.UserData = slices.Clone(i.SecurityGroups), slices.Clone(i.UserData)
	c.Tags, c.NetworkInterfaceTags, c.VolumeTags = maps.Clone(i.Tags), maps.Clone(i.NetworkInterfaceTags), maps.Clone(i.VolumeTags)
	return c
}

// state is what the region holds.
type state struct {
	types     map[string]InstanceType
	images    map[string]Image
	vpcs      map[string]VPC
	subnets   map[string]Subnet
	groups    map[string]SecurityGroup
	capacity  map[string]CapacityReservation
	instances map[string]*instance
	// quotas are limits of vCPUs, of spot instances by true and of all others by false. There is none for what isn't here.
	quotas map[bool]int
	// tokens are the client tokens of requests that launched instances.
	tokens map[string]launched
	// templates are launch templates by their names.
	templates map[string]*LaunchTemplate
	// fleets are those that were answered, and fleetTokens the answers by their client tokens.
	fleets      []*Fleet
	fleetTokens map[string]*fleetXML
}

// instance with what only the server has.
type instance struct {
	Instance
	number int
	stop   func(cause error)
}

// launched is what a client token stands for.
type launched struct {
	request   string
	instances []string
}

func newState(config Config) (state, error) {
	s := state{
		types: map[string]InstanceType{}, images: map[string]Image{}, vpcs: map[string]VPC{}, subnets: map[string]Subnet{}, groups: map[string]SecurityGroup{},
		capacity: map[string]CapacityReservation{}, instances: map[string]*instance{}, quotas: map[bool]int{}, tokens: map[string]launched{},
		templates: map[string]*LaunchTemplate{}, fleetTokens: map[string]*fleetXML{},
	}
	zones := map[string]bool{}
	for _, zone := range config.Zones {
		zones[zone.Name] = true
	}
	for _, t := range config.Types {
		if t.Architecture == "" {
			t.Architecture = "x86_64"
		}
		s.types[t.Name] = t
	}
	for _, image := range config.Images {
		if image.Architecture == "" {
			image.Architecture = "x86_64"
		}
		if image.Owner == "" {
			image.Owner = config.Account
		}
		if image.SnapshotGiB == 0 {
			image.SnapshotGiB = 8
		}
		image.Tags = own(image.Tags)
		s.images[image.ID] = image
	}
	for _, vpc := range config.VPCs {
		vpc.Tags = own(vpc.Tags)
		s.vpcs[vpc.ID] = vpc
	}
	for _, subnet := range config.Subnets {
		if _, ok := s.vpcs[subnet.VPC]; !ok {
			return s, fmt.Errorf("subnet %s is in VPC %q, which doesn't exist", subnet.ID, subnet.VPC)
		}
		if !zones[subnet.Zone] {
			return s, fmt.Errorf("subnet %s is in zone %q, which doesn't exist", subnet.ID, subnet.Zone)
		}
		if !subnet.CIDR.IsValid() || !subnet.CIDR.Addr().Is4() {
			return s, fmt.Errorf("subnet %s has no range of IPv4 addresses", subnet.ID)
		}
		subnet.Tags = own(subnet.Tags)
		s.subnets[subnet.ID] = subnet
	}
	for _, group := range config.SecurityGroups {
		group.Tags = own(group.Tags)
		s.groups[group.ID] = group
	}
	for _, reservation := range config.Reservations {
		reservation.Tags = own(reservation.Tags)
		s.capacity[reservation.ID] = reservation
	}
	return s, nil
}

// own returns a copy of the tags, never nil.
func own(tags Tags) Tags {
	c := Tags{}
	maps.Copy(c, tags)
	return c
}

// byID returns the values in the order of their keys.
func byID[V any](values map[string]V) []V {
	list := make([]V, 0, len(values))
	for _, id := range slices.Sorted(maps.Keys(values)) {
		list = append(list, values[id])
	}
	return list
}

// newID returns a new ID of a resource, such as i-0123456789abcdef0.
func newID(prefix string) string {
	random := make([]byte, 8)
	_, _ = rand.Read(random) // never fails
	return prefix + "-0" + hex.EncodeToString(random)
}

// used counts the instances that use a capacity reservation.
func (s *state) used(reservation string) int {
	used := 0
	for _, i := range s.instances {
		if i.live() && i.CapacityReservation == reservation {
			used++
		}
	}
	return used
}

// address returns a free address of a subnet. EC2 keeps the first four and the last.
func (s *state) address(subnet Subnet) (netip.Addr, bool) {
	used := map[string]bool{}
	for _, i := range s.instances {
		if i.Subnet == subnet.ID && i.State != Terminated {
			used[i.PrivateIP] = true
		}
	}
	address := subnet.CIDR.Masked().Addr()
	for range 4 {
		address = address.Next()
	}
	for ; subnet.CIDR.Contains(address.Next()); address = address.Next() {
		if !used[address.String()] {
			return address, true
		}
	}
	return netip.Addr{}, false
}

// free counts the free addresses of a subnet.
func (s *state) free(subnet Subnet) int {
	free := 1<<(32-subnet.CIDR.Bits()) - 5
	for _, i := range s.instances {
		if i.Subnet == subnet.ID && i.State != Terminated {
			free--
		}
	}
	return max(0, free)
}

// privateDNSName is the name by address that EC2 gives instances.
func privateDNSName(address netip.Addr, domain string) string {
	return "ip-" + strings.ReplaceAll(address.String(), ".", "-") + "." + domain
}
