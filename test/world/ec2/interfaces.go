// SPDX-License-Identifier: Apache-2.0

package ec2

import "fmt"

// interfaceOf returns the instance of a network interface. It goes with its instance.
func (s *Server) interfaceOf(id string) (*instance, error) {
	for _, i := range s.instances {
		if i.NetworkInterface == id && i.State != Terminated {
			return i, nil
		}
	}
	return nil, &Error{Code: "InvalidNetworkInterfaceID.NotFound", Message: fmt.Sprintf("The networkInterface ID '%s' does not exist", id)}
}

func (s *Server) describeNetworkInterfaces(p Params) (any, error) {
	for _, id := range p.List("NetworkInterfaceId") {
		if _, err := s.interfaceOf(id); err != nil {
			return nil, err
		}
	}
	type networkInterface struct {
		ID             string     `xml:"networkInterfaceId"`
		Subnet         string     `xml:"subnetId"`
		VPC            string     `xml:"vpcId"`
		Zone           string     `xml:"availabilityZone"`
		Owner          string     `xml:"ownerId"`
		Status         string     `xml:"status"`
		PrivateIP      string     `xml:"privateIpAddress"`
		PrivateDNSName string     `xml:"privateDnsName"`
		Groups         []groupXML `xml:"groupSet>item"`
		Instance       string     `xml:"attachment>instanceId"`
		DeviceIndex    int        `xml:"attachment>deviceIndex"`
		AttachStatus   string     `xml:"attachment>status"`
		Delete         bool       `xml:"attachment>deleteOnTermination"`
		Tags           []tagXML   `xml:"tagSet>item"`
	}
	answer := struct {
		Interfaces []networkInterface `xml:"networkInterfaceSet>item"`
	}{}
	for _, i := range byID(s.instances) {
		if i.State == Terminated {
			continue
		}
		passes, err := matches(p, fields{
			"attachment.instance-id": one(i.ID), "network-interface-id": one(i.NetworkInterface), "subnet-id": one(i.Subnet), "vpc-id": one(i.VPC),
			"group-id": i.SecurityGroups, "status": one("in-use"),
		}.tagged(i.NetworkInterfaceTags))
		if err != nil {
			return nil, err
		}
		if passes && wanted(p, "NetworkInterfaceId", i.NetworkInterface) {
			answer.Interfaces = append(answer.Interfaces, networkInterface{
				i.NetworkInterface, i.Subnet, i.VPC, i.Zone, s.config.Account, "in-use", i.PrivateIP, i.PrivateDNSName, s.groupsXML(i.SecurityGroups),
				i.ID, 0, "attached", true, tagsXML(i.NetworkInterfaceTags),
			})
		}
	}
	return answer, nil
}

func (s *Server) describeNetworkInterfaceAttribute(p Params) (any, error) {
	i, err := s.interfaceOf(p.Get("NetworkInterfaceId"))
	if err != nil {
		return nil, err
	}
	if attribute := p.Get("Attribute"); attribute != "groupSet" {
		return nil, unimplemented("InvalidParameterValue", "The attribute %s isn't supported.", attribute)
	}
	return struct {
		ID     string     `xml:"networkInterfaceId"`
		Groups []groupXML `xml:"groupSet>item"`
	}{i.NetworkInterface, s.groupsXML(i.SecurityGroups)}, nil
}

func (s *Server) modifyNetworkInterfaceAttribute(p Params) (any, error) {
	i, err := s.interfaceOf(p.Get("NetworkInterfaceId"))
	if err != nil {
		return nil, err
	}
	groups := p.List("SecurityGroupId")
	if len(groups) == 0 {
		return nil, unimplemented("InvalidParameterCombination", "Only the security groups of a network interface can be modified.")
	}
	if err := known(p, "SecurityGroupId", s.groups, "InvalidGroup.NotFound", "The security group '%s' does not exist"); err != nil {
		return nil, err
	}
	i.SecurityGroups = groups
	return done{true}, nil
}
