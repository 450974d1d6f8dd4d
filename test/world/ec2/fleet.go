// SPDX-License-Identifier: Apache-2.0

package ec2

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Tags that EC2 puts on the instances of a fleet.
const (
	FleetTag    = "aws:ec2:fleet-id"
	TemplateTag = "aws:ec2launchtemplate:id"
)

// Fleet is a CreateFleet that was answered.
type Fleet struct {
	ID   string
	Time time.Time
	// Capacity is on-demand or spot, Strategy the allocation strategy.
	Capacity, Strategy string
	// Overrides are what could be launched, as type/zone in the order of the request, and Tried in the order of the attempts.
	Overrides, Tried []string
	// Instances are the IDs of those that were launched.
	Instances []string
}

// fleetParameters are the parameters of CreateFleet that are understood, with those below them. Any other is unimplemented.
var fleetParameters = []string{
	"Action", "Version", "ClientToken", "DryRun", "Type", "LaunchTemplateConfigs", "TagSpecification", "TargetCapacitySpecification", "SpotOptions", "OnDemandOptions",
}

// pool is one of the combinations of type and zone that a fleet may launch.
type pool struct {
	template *LaunchTemplate
	launch   Launch
	zone     string
	price    float64
	priority float64
	override overrideXML
}

type overrideXML struct {
	Type     string `xml:"instanceType"`
	Subnet   string `xml:"subnetId,omitempty"`
	Zone     string `xml:"availabilityZone,omitempty"`
	Image    string `xml:"imageId,omitempty"`
	Priority string `xml:"priority,omitempty"`
}

type specificationXML struct {
	ID       string      `xml:"launchTemplateSpecification>launchTemplateId"`
	Name     string      `xml:"launchTemplateSpecification>launchTemplateName"`
	Version  string      `xml:"launchTemplateSpecification>version"`
	Override overrideXML `xml:"overrides"`
}

func (p pool) specification() specificationXML {
	return specificationXML{p.template.ID, p.template.Name, "1", p.override}
}

type fleetErrorXML struct {
	Of        specificationXML `xml:"launchTemplateAndOverrides"`
	Lifecycle string           `xml:"lifecycle"`
	Code      string           `xml:"errorCode"`
	Message   string           `xml:"errorMessage"`
}

type fleetInstanceXML struct {
	Of        specificationXML `xml:"launchTemplateAndOverrides"`
	Lifecycle string           `xml:"lifecycle"`
	IDs       []string         `xml:"instanceIds>item"`
	Type      string           `xml:"instanceType"`
}

type fleetXML struct {
	ID        string             `xml:"fleetId"`
	Errors    []fleetErrorXML    `xml:"errorSet>item"`
	Instances []fleetInstanceXML `xml:"fleetInstanceSet>item"`
}

// createFleet launches instances at once, those of the best pool first: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/create-ec2-fleet.html
func (s *Server) createFleet(p Params) (any, error) {
	for _, name := range p.Names() {
		if first, _, _ := strings.Cut(name, "."); !slices.Contains(fleetParameters, first) {
			return nil, unimplemented("UnknownParameter", "The parameter %s is not recognized", name)
		}
	}
	if kind := p.Get("Type"); kind != "instant" {
		return nil, unimplemented("InvalidParameterValue", "Fleets of the type %q aren't supported.", kind)
	}
	token := p.Get("ClientToken")
	if answer, ok := s.fleetTokens[token]; ok && token != "" {
		return answer, nil
	}
	target := p.Struct("TargetCapacitySpecification")
	count, err := target.Int("TotalTargetCapacity", 0)
	if err != nil {
		return nil, err
	}
	fleet := &Fleet{ID: newID("fleet"), Time: time.Now(), Capacity: target.Get("DefaultTargetCapacityType")}
	spot := fleet.Capacity == "spot"
	switch fleet.Capacity {
	case "spot":
		fleet.Strategy = cmp.Or(p.Get("SpotOptions.AllocationStrategy"), "lowest-price")
	case "on-demand":
		fleet.Strategy = cmp.Or(p.Get("OnDemandOptions.AllocationStrategy"), "lowest-price")
	default:
		return nil, unimplemented("InvalidParameterValue", "Fleets of the capacity %q aren't supported.", fleet.Capacity)
	}
	pools, err := s.pools(p, spot, fleet)
	if err != nil {
		return nil, err
	}
	if err := order(pools, fleet.Strategy); err != nil {
		return nil, err
	}
	answer := s.fill(fleet, pools, count)
	s.fleets = append(s.fleets, fleet)
	if token != "" {
		s.fleetTokens[token] = answer
	}
	return answer, nil
}

// pools reads the configurations of launch templates.
func (s *Server) pools(p Params, spot bool, fleet *Fleet) ([]pool, error) {
	var pools []pool
	for _, config := range p.Structs("LaunchTemplateConfigs") {
		template, err := s.template(config.Struct("LaunchTemplateSpecification"))
		if err != nil {
			return nil, err
		}
		if profile := template.Launch.InstanceProfile; profile != "" && s.profileExists != nil && !s.profileExists(profile) {
			return nil, &Error{Code: "InvalidParameterValue", Message: fmt.Sprintf("Value (%s) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name", profile)}
		}
		for _, override := range config.Structs("Overrides") {
			o := pool{template: template, launch: template.Launch, override: overrideXML{
				override.Get("InstanceType"), override.Get("SubnetId"), override.Get("AvailabilityZone"), override.Get("ImageId"), override.Get("Priority"),
			}}
			o.launch.Type, o.launch.Spot = cmp.Or(o.override.Type, o.launch.Type), spot
			o.launch.Subnet, o.launch.Image = cmp.Or(o.override.Subnet, o.launch.Subnet), cmp.Or(o.override.Image, o.launch.Image)
			o.launch.Tags, o.launch.VolumeTags = own(p.tags("instance")), own(p.tags("volume"))
			o.launch.Tags[FleetTag], o.launch.Tags[TemplateTag] = fleet.ID, template.ID
			o.launch.NetworkInterfaceTags = own(template.Launch.NetworkInterfaceTags)
			subnet, ok := s.subnets[o.launch.Subnet]
			if !ok {
				return nil, &Error{Code: "InvalidSubnetID.NotFound", Message: fmt.Sprintf("The subnet ID '%s' does not exist", o.launch.Subnet)}
			}
			if o.zone = subnet.Zone; o.override.Zone != "" && o.override.Zone != subnet.Zone {
				return nil, &Error{Code: "InvalidParameterValue", Message: fmt.Sprintf("The subnet %s isn't in %s", subnet.ID, o.override.Zone)}
			}
			t := s.types[o.launch.Type]
			if o.price = t.OnDemandPrice; spot {
				o.price = t.SpotPrice[o.zone]
			}
			if o.override.Priority != "" {
				if o.priority, err = strconv.ParseFloat(o.override.Priority, 64); err != nil {
					return nil, &Error{Code: "InvalidParameterValue", Message: fmt.Sprintf("Invalid value '%s' for Priority.", o.override.Priority)}
				}
			}
			fleet.Overrides = append(fleet.Overrides, o.launch.Type+"/"+o.zone)
			pools = append(pools, o)
		}
	}
	if len(pools) == 0 {
		return nil, &Error{Code: "MissingParameter", Message: "The request must contain overrides of a launch template"}
	}
	return pools, nil
}

// order sorts the pools by an allocation strategy, the best first. All pools are of one capacity here, so strategies that weigh capacity and price
// come down to the price.
func order(pools []pool, strategy string) error {
	by := func(p pool) float64 { return p.price }
	switch strategy {
	case "lowest-price", "price-capacity-optimized", "capacity-optimized":
	case "prioritized", "capacity-optimized-prioritized":
		by = func(p pool) float64 { return p.priority }
	default:
		return unimplemented("InvalidParameterValue", "The allocation strategy %s isn't supported.", strategy)
	}
	slices.SortStableFunc(pools, func(a, b pool) int { return cmp.Compare(by(a), by(b)) })
	return nil
}

// fill launches instances until there are enough, or every pool has failed: a pool's error is reported once, and doesn't fail the request.
func (s *Server) fill(fleet *Fleet, pools []pool, count int) *fleetXML {
	answer := &fleetXML{ID: fleet.ID}
	lifecycle := fleet.Capacity
	reservation := newID("r")
	for _, pool := range pools {
		launched := fleetInstanceXML{Of: pool.specification(), Lifecycle: lifecycle, Type: pool.launch.Type}
		for len(fleet.Instances) < count {
			if len(launched.IDs) == 0 {
				fleet.Tried = append(fleet.Tried, pool.launch.Type+"/"+pool.zone)
			}
			launch := pool.launch
			launch.Tags, launch.VolumeTags, launch.NetworkInterfaceTags = maps.Clone(launch.Tags), maps.Clone(launch.VolumeTags), maps.Clone(launch.NetworkInterfaceTags)
			id, err := s.launch("CreateFleet", reservation, launch)
			var failed *Error
			if errors.As(err, &failed) {
				answer.Errors = append(answer.Errors, fleetErrorXML{pool.specification(), lifecycle, failed.Code, failed.Message})
				break
			}
			launched.IDs = append(launched.IDs, id)
			fleet.Instances = append(fleet.Instances, id)
		}
		if len(launched.IDs) > 0 {
			answer.Instances = append(answer.Instances, launched)
		}
		if len(fleet.Instances) == count {
			break
		}
	}
	return answer
}

// CheckInstanceProfiles has CreateFleet ask whether an instance profile exists. Otherwise all do.
func (s *Server) CheckInstanceProfiles(exists func(name string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.profileExists = exists
}

// Fleets returns what was asked of CreateFleet, the oldest first, without dry runs.
func (s *Server) Fleets() []Fleet {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Fleet
	for _, fleet := range s.fleets {
		list = append(list, *fleet)
	}
	return list
}
