// SPDX-License-Identifier: Apache-2.0

package ec2

import (
	"fmt"
	"maps"
	"strings"
)

// tagsOf returns the tags of a resource.
func (s *Server) tagsOf(id string) (Tags, error) {
	for _, i := range s.instances {
		switch id {
		case i.ID:
			return i.Tags, nil
		case i.NetworkInterface:
			return i.NetworkInterfaceTags, nil
		case i.volume():
			return i.VolumeTags, nil
		}
	}
	if image, ok := s.images[id]; ok {
		return image.Tags, nil
	}
	if vpc, ok := s.vpcs[id]; ok {
		return vpc.Tags, nil
	}
	if subnet, ok := s.subnets[id]; ok {
		return subnet.Tags, nil
	}
	if group, ok := s.groups[id]; ok {
		return group.Tags, nil
	}
	if reservation, ok := s.capacity[id]; ok {
		return reservation.Tags, nil
	}
	if strings.HasPrefix(id, "i-") {
		return nil, s.mustExist([]string{id})
	}
	return nil, &Error{Code: "InvalidID", Message: fmt.Sprintf("The ID '%s' is not valid", id)}
}

// tagged returns the tags of each resource that a request names.
func (s *Server) tagged(p Params) ([]Tags, error) {
	var list []Tags
	for _, id := range p.List("ResourceId") {
		tags, err := s.tagsOf(id)
		if err != nil {
			return nil, err
		}
		list = append(list, tags)
	}
	return list, nil
}

func (s *Server) createTags(p Params) (any, error) {
	resources, err := s.tagged(p)
	if err != nil {
		return nil, err
	}
	fresh := Tags{}
	for _, tag := range p.Structs("Tag") {
		fresh[tag.Get("Key")] = tag.Get("Value")
	}
	for _, tags := range resources {
		maps.Copy(tags, fresh)
	}
	return done{true}, nil
}

func (s *Server) deleteTags(p Params) (any, error) {
	resources, err := s.tagged(p)
	if err != nil {
		return nil, err
	}
	for _, tags := range resources {
		for _, tag := range p.Structs("Tag") {
			key, value := tag.Get("Key"), tag.Get("Value")
			if !tag.values.Has(tag.prefix+"Value") || tags[key] == value {
				delete(tags, key)
			}
		}
	}
	return done{true}, nil
}
