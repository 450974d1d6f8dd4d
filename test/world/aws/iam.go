// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"crypto/rand"
	"encoding/xml"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

const iamNamespace = "https://iam.amazonaws.com/doc/2010-05-08/"

// instanceProfile is what gives a role to instances.
type instanceProfile struct {
	Name, Path, ID, Role string
	Created              time.Time
	Tags                 map[string]string
}

// InstanceProfiles returns the role of each instance profile by its name; empty for none.
func (a *Account) InstanceProfiles() map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	roles := map[string]string{}
	for name, profile := range a.profiles {
		roles[name] = profile.Role
	}
	return roles
}

type profileXML struct {
	Path    string
	Name    string `xml:"InstanceProfileName"`
	ID      string `xml:"InstanceProfileId"`
	ARN     string `xml:"Arn"`
	Created string `xml:"CreateDate"`
	Roles   []struct {
		Path, RoleName, RoleId, Arn, CreateDate string
	} `xml:"Roles>member"`
	Tags []tagXML `xml:"Tags>member"`
}

type tagXML struct{ Key, Value string }

func (a *Account) profileXML(p *instanceProfile) *profileXML {
	out := &profileXML{
		Path: p.Path, Name: p.Name, ID: p.ID, Created: p.Created.UTC().Format(time.RFC3339),
		ARN: fmt.Sprintf("arn:aws:iam::%s:instance-profile%s%s", a.cfg.Account, p.Path, p.Name),
	}
	if p.Role != "" {
		out.Roles = append(out.Roles, struct{ Path, RoleName, RoleId, Arn, CreateDate string }{
			"/", p.Role, "AROA" + strings.ToUpper(p.Role), a.roleARN(p.Role), p.Created.UTC().Format(time.RFC3339),
		})
	}
	for _, key := range slices.Sorted(maps.Keys(p.Tags)) {
		out.Tags = append(out.Tags, tagXML{key, p.Tags[key]})
	}
	return out
}

// iamResponse is the answer of each action: <…Response><…Result>.
type iamResponse struct {
	XMLName xml.Name
	Result  any
	ID      string `xml:"ResponseMetadata>RequestId"`
}

type iamResult struct {
	XMLName  xml.Name
	Profile  *profileXML   `xml:"InstanceProfile,omitempty"`
	Profiles []*profileXML `xml:"InstanceProfiles>member,omitempty"`
	More     *bool         `xml:"IsTruncated,omitempty"`
}

func (a *Account) serveIAM(w http.ResponseWriter, _ *http.Request, action string, body []byte) {
	form, err := url.ParseQuery(string(body))
	if err != nil {
		failQuery(w, &Error{http.StatusBadRequest, "MalformedQueryString", err.Error()})
		return
	}
	result, problem := a.iam(action, form)
	if problem != nil {
		failQuery(w, problem)
		return
	}
	result.XMLName = xml.Name{Local: action + "Result"}
	writeXML(w, http.StatusOK, iamResponse{XMLName: xml.Name{Space: iamNamespace, Local: action + "Response"}, Result: result, ID: requestID()})
}

// iam changes instance profiles. Its errors are those of https://docs.aws.amazon.com/IAM/latest/APIReference.
func (a *Account) iam(action string, form url.Values) (iamResult, *Error) {
	name := form.Get("InstanceProfileName")
	unknown := &Error{http.StatusNotFound, "NoSuchEntity", fmt.Sprintf("Instance Profile %s cannot be found.", name)}
	a.mu.Lock()
	profile := a.profiles[name]
	a.mu.Unlock()
	switch action {
	case "CreateInstanceProfile", "ListInstanceProfiles":
	case "GetInstanceProfile", "AddRoleToInstanceProfile", "RemoveRoleFromInstanceProfile", "DeleteInstanceProfile", "TagInstanceProfile":
		if profile == nil {
			return iamResult{}, unknown
		}
	default:
		return iamResult{}, a.unknownAction("iam", action)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch action {
	case "CreateInstanceProfile":
		if profile != nil {
			return iamResult{}, &Error{http.StatusConflict, "EntityAlreadyExists", fmt.Sprintf("Instance Profile %s already exists.", name)}
		}
		path := form.Get("Path")
		if path == "" {
			path = "/"
		}
		profile = &instanceProfile{Name: name, Path: path, ID: "AIPA" + rand.Text()[:16], Created: a.cfg.Now(), Tags: tagsOf(form)}
		a.profiles[name] = profile
		return iamResult{Profile: a.profileXML(profile)}, nil
	case "GetInstanceProfile":
		return iamResult{Profile: a.profileXML(profile)}, nil
	case "ListInstanceProfiles":
		result := iamResult{More: new(false)}
		for _, name := range slices.Sorted(maps.Keys(a.profiles)) {
			if strings.HasPrefix(a.profiles[name].Path, form.Get("PathPrefix")) {
				result.Profiles = append(result.Profiles, a.profileXML(a.profiles[name]))
			}
		}
		return result, nil
	case "AddRoleToInstanceProfile":
		switch of := form.Get("RoleName"); {
		case a.roles[of] == nil:
			return iamResult{}, &Error{http.StatusNotFound, "NoSuchEntity", fmt.Sprintf("The role with name %s cannot be found.", of)}
		case profile.Role != "":
			return iamResult{}, &Error{http.StatusConflict, "LimitExceeded", "Cannot exceed quota for InstanceSessionsPerInstanceProfile: 1"}
		default:
			profile.Role = of
		}
	case "RemoveRoleFromInstanceProfile":
		if profile.Role != form.Get("RoleName") {
			return iamResult{}, &Error{http.StatusNotFound, "NoSuchEntity", fmt.Sprintf("The role with name %s cannot be found.", form.Get("RoleName"))}
		}
		profile.Role = ""
	case "DeleteInstanceProfile":
		if profile.Role != "" {
			return iamResult{}, &Error{http.StatusConflict, "DeleteConflict", "Cannot delete entity, must remove roles from instance profile first."}
		}
		delete(a.profiles, name)
	case "TagInstanceProfile":
		maps.Copy(profile.Tags, tagsOf(form))
	}
	return iamResult{}, nil
}

// tagsOf reads Tags.member.N.Key and Tags.member.N.Value.
func tagsOf(form url.Values) map[string]string {
	tags := map[string]string{}
	for n := 1; form.Has(fmt.Sprintf("Tags.member.%d.Key", n)); n++ {
		tags[form.Get(fmt.Sprintf("Tags.member.%d.Key", n))] = form.Get(fmt.Sprintf("Tags.member.%d.Value", n))
	}
	return tags
}
