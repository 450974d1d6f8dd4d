// SPDX-License-Identifier: Apache-2.0

package ec2

import (
	"maps"
	"net/http"
	"net/url"
	"slices"

	worldaws "github.com/autonode-io/autonode/test/world/aws"
)

// ServeHTTP answers a request that came by another way than the server's own address: by an aws.Account, which checks signatures and permissions.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.serveEC2(w, r) }

// Prices returns what the types cost on demand, in dollars an hour.
func (s *Server) Prices() map[string]float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	prices := map[string]float64{}
	for name, t := range s.types {
		prices[name] = t.OnDemandPrice
	}
	return prices
}

// Demands returns what a request needs permission for, with the condition keys that policies are evaluated with. What launches instances needs
// permission to run them, to tag them, and to pass the role of their instance profile: passRole returns that demand.
// https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html
func (s *Server) Demands(action string, form url.Values, passRole func(profile string) worldaws.Demand) []worldaws.Demand {
	p := Params{values: form}
	tagSpecified := func(demands []worldaws.Demand) []worldaws.Demand {
		if len(p.Structs("TagSpecification")) > 0 {
			demands = append(demands, worldaws.Demand{Action: "ec2:CreateTags", Resource: "*", Keys: map[string]string{"ec2:CreateAction": action}})
		}
		return demands
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch action {
	case "TerminateInstances":
		return s.onTagged(action, "instance", p.List("InstanceId"))
	case "DeleteLaunchTemplate":
		if t, err := s.template(p); err == nil {
			return []worldaws.Demand{{Action: "ec2:" + action, Resource: s.arn("launch-template", t.ID), Keys: resourceTags(t.Tags)}}
		}
	case "CreateLaunchTemplate":
		return tagSpecified([]worldaws.Demand{{Action: "ec2:" + action, Resource: "*"}})
	case "CreateFleet", "RunInstances":
		demands := []worldaws.Demand{{Action: "ec2:" + action, Resource: "*"}}
		if action == "CreateFleet" {
			demands = append(demands, worldaws.Demand{Action: "ec2:RunInstances", Resource: "*"})
		}
		for _, profile := range s.profilesOf(p) {
			demands = append(demands, passRole(profile))
		}
		return tagSpecified(demands)
	}
	return []worldaws.Demand{{Action: "ec2:" + action, Resource: "*"}}
}

// profilesOf are the instance profiles that a request would give to instances.
func (s *Server) profilesOf(p Params) []string {
	profiles := map[string]bool{}
	of := []Params{p.Struct("LaunchTemplate")}
	for _, config := range p.Structs("LaunchTemplateConfigs") {
		of = append(of, config.Struct("LaunchTemplateSpecification"))
	}
	for _, specification := range of {
		if t, err := s.template(specification); err == nil {
			profiles[t.Launch.InstanceProfile] = true
		}
	}
	profiles[p.Get("IamInstanceProfile.Name")] = true
	delete(profiles, "")
	return slices.Sorted(maps.Keys(profiles))
}

func (s *Server) onTagged(action, kind string, ids []string) []worldaws.Demand {
	var demands []worldaws.Demand
	for _, id := range ids {
		tags, err := s.tagsOf(id)
		if err != nil { // then the action reports it
			tags = nil
		}
		demands = append(demands, worldaws.Demand{Action: "ec2:" + action, Resource: s.arn(kind, id), Keys: resourceTags(tags)})
	}
	return demands
}

func resourceTags(tags Tags) map[string]string {
	keys := map[string]string{}
	for key, value := range tags {
		keys["aws:ResourceTag/"+key] = value
	}
	return keys
}
