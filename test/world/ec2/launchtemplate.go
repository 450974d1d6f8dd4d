// SPDX-License-Identifier: Apache-2.0

package ec2

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// LaunchTemplate is what instances are launched from. It has one version, which is its latest.
type LaunchTemplate struct {
	// ID is such as lt-0123456789abcdef0.
	ID, Name string
	Created  time.Time
	Tags     Tags
	// Launch is what it requests: EC2 checks none of it before something is launched.
	Launch Launch
}

// templateParameters are the parameters of a launch template's data that are understood. Any other is unimplemented.
var templateParameters = []string{
	"BlockDeviceMapping", "CapacityReservationSpecification", "EnclaveOptions", "IamInstanceProfile", "ImageId", "InstanceMarketOptions", "MetadataOptions",
	"Monitoring", "NetworkInterface", "Placement", "SecurityGroupId", "TagSpecification", "UserData",
}

type templateXML struct {
	ID      string   `xml:"launchTemplateId"`
	Name    string   `xml:"launchTemplateName"`
	Created string   `xml:"createTime"`
	Creator string   `xml:"createdBy"`
	Default int      `xml:"defaultVersionNumber"`
	Latest  int      `xml:"latestVersionNumber"`
	Tags    []tagXML `xml:"tagSet>item"`
}

func (s *Server) templateXML(t *LaunchTemplate) templateXML {
	return templateXML{
		ID: t.ID, Name: t.Name, Created: t.Created.Format(timeFormat), Creator: fmt.Sprintf("arn:aws:iam::%s:root", s.config.Account),
		Default: 1, Latest: 1, Tags: tagsXML(t.Tags),
	}
}

func (s *Server) createLaunchTemplate(p Params) (any, error) {
	name := p.Get("LaunchTemplateName")
	data := p.Struct("LaunchTemplateData")
	for _, field := range data.Names() {
		if first, _, _ := strings.Cut(field, "."); !slices.Contains(templateParameters, first) {
			return nil, unimplemented("UnknownParameter", "The parameter LaunchTemplateData.%s is not recognized", field)
		}
	}
	if _, taken := s.templates[name]; taken {
		return nil, &Error{Code: "InvalidLaunchTemplateName.AlreadyExistsException", Message: "Launch template name already in use."}
	}
	if name == "" {
		return nil, &Error{Code: "MissingParameter", Message: "The request must contain the parameter LaunchTemplateName"}
	}
	launch, err := readLaunch(data)
	if err != nil {
		return nil, err
	}
	if decodedSize(launch.UserData) > maxUserData {
		return nil, &Error{Code: "InvalidUserData.Malformed", Message: "User data is limited to 16384 bytes"}
	}
	t := &LaunchTemplate{ID: newID("lt"), Name: name, Created: time.Now().UTC(), Tags: own(p.tags("launch-template")), Launch: launch}
	s.templates[name] = t
	return struct {
		Template templateXML `xml:"launchTemplate"`
	}{s.templateXML(t)}, nil
}

// maxUserData is EC2's limit of user data, in bytes before they are encoded.
const maxUserData = 16 << 10

// decodedSize is the size of what is encoded in base64.
func decodedSize(encoded string) int { return len(strings.TrimRight(encoded, "=")) * 3 / 4 }

// template returns a launch template by its name or its ID.
func (s *Server) template(p Params) (*LaunchTemplate, error) {
	name, id := p.Get("LaunchTemplateName"), p.Get("LaunchTemplateId")
	for _, t := range s.templates {
		if name != "" && t.Name == name || id != "" && t.ID == id {
			return t, nil
		}
	}
	if id != "" {
		return nil, &Error{Code: "InvalidLaunchTemplateId.NotFound", Message: fmt.Sprintf("The specified launch template, with template ID %s, does not exist.", id)}
	}
	return nil, &Error{Code: "InvalidLaunchTemplateName.NotFoundException", Message: fmt.Sprintf("The specified launch template, with template name %s, does not exist.", name)}
}

func (s *Server) describeLaunchTemplates(p Params) (any, error) {
	for _, name := range p.List("LaunchTemplateName") {
		if s.templates[name] == nil {
			return nil, &Error{Code: "InvalidLaunchTemplateName.NotFoundException", Message: "At least one of the launch templates specified in the request does not exist."}
		}
	}
	answer := struct {
		Templates []templateXML `xml:"launchTemplates>item"`
	}{}
	for _, t := range byID(s.templates) {
		passes, err := matches(p, fields{"launch-template-name": one(t.Name), "create-time": one(t.Created.Format(timeFormat))}.tagged(t.Tags))
		if err != nil {
			return nil, err
		}
		if passes && wanted(p, "LaunchTemplateName", t.Name) && wanted(p, "LaunchTemplateId", t.ID) {
			answer.Templates = append(answer.Templates, s.templateXML(t))
		}
	}
	return answer, nil
}

func (s *Server) deleteLaunchTemplate(p Params) (any, error) {
	t, err := s.template(p)
	if err != nil {
		return nil, err
	}
	delete(s.templates, t.Name)
	return struct {
		Template templateXML `xml:"launchTemplate"`
	}{s.templateXML(t)}, nil
}

// LaunchTemplates returns all launch templates, in the order of their names.
func (s *Server) LaunchTemplates() []LaunchTemplate {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []LaunchTemplate
	for _, t := range byID(s.templates) {
		c := *t
		c.Tags = own(t.Tags)
		list = append(list, c)
	}
	return list
}
