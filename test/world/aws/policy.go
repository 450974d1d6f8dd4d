// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
)

// policy is a policy document, as far as it is understood: what isn't makes reading it fail.
type policy struct {
	Version   string
	Statement []statement
}

type statement struct {
	Sid       string           `json:",omitempty"`
	Effect    string           // Allow or Deny.
	Principal map[string]texts `json:",omitempty"`
	Action    texts
	Resource  texts                       `json:",omitempty"`
	Condition map[string]map[string]texts `json:",omitempty"`
}

// texts is one text, or a list of them.
type texts []string

func (t *texts) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*t = texts{one}
		return nil
	}
	var several []string
	if err := json.Unmarshal(data, &several); err != nil {
		return err
	}
	*t = several
	return nil
}

func readPolicy(document string) (policy, error) {
	decoder := json.NewDecoder(bytes.NewReader([]byte(document)))
	decoder.DisallowUnknownFields()
	var p policy
	if err := decoder.Decode(&p); err != nil {
		return policy{}, fmt.Errorf("MalformedPolicyDocument: %w", err)
	}
	for _, s := range p.Statement {
		if s.Effect != "Allow" && s.Effect != "Deny" {
			return policy{}, fmt.Errorf("MalformedPolicyDocument: Effect %q", s.Effect)
		}
		if len(s.Action) == 0 {
			return policy{}, errors.New("MalformedPolicyDocument: a statement without Action")
		}
		for operator := range s.Condition {
			if operator != "StringEquals" && operator != "StringLike" {
				return policy{}, fmt.Errorf("MalformedPolicyDocument: the stand-in doesn't know %s", operator)
			}
		}
	}
	return p, nil
}

// allows evaluates the statements that are for the principal: a Deny wins, and without an Allow nothing is allowed.
func (p policy) allows(principal func(map[string]texts) bool, action, resource string, keys map[string]string) bool {
	allowed := false
	for _, s := range p.Statement {
		if !principal(s.Principal) || !matchesAny(s.Action, action) || len(s.Resource) > 0 && !matchesAny(s.Resource, resource) || !s.holds(keys) {
			continue
		}
		if s.Effect == "Deny" {
			return false
		}
		allowed = true
	}
	return allowed
}

func (s statement) holds(keys map[string]string) bool {
	for operator, conditions := range s.Condition {
		for key, wanted := range conditions {
			value, ok := keys[key]
			if !ok || operator == "StringEquals" && !slices.Contains(wanted, value) || operator == "StringLike" && !matchesAny(wanted, value) {
				return false
			}
		}
	}
	return true
}

func matchesAny(patterns []string, value string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return matches(pattern, value) })
}

// matches is AWS's way to match: * is any text, with slashes.
func matches(pattern, value string) bool {
	const noSlash = "\x00"
	matched, err := path.Match(strings.ReplaceAll(pattern, "/", noSlash), strings.ReplaceAll(value, "/", noSlash))
	return err == nil && matched
}

func anybody(map[string]texts) bool { return true }

// PassRole is the demand of what gives a role to instances: https://docs.aws.amazon.com/IAM/latest/UserGuide/id_roles_use_passrole.html
func (a *Account) PassRole(role string) Demand {
	return Demand{Action: "iam:PassRole", Resource: a.roleARN(role), Keys: map[string]string{"iam:PassedToService": "ec2.amazonaws.com"}}
}

// authorize returns what the caller's role isn't allowed.
func (a *Account) authorize(caller *Caller, service, action string, body []byte) *Error {
	demands := []Demand{{Action: service + ":" + action, Resource: "*"}}
	form := url.Values{}
	if service == "ec2" || service == "iam" {
		var err error
		if form, err = url.ParseQuery(string(body)); err != nil {
			return &Error{http.StatusBadRequest, "MalformedQueryString", err.Error()}
		}
	}
	switch {
	case service == "ec2" && a.cfg.Demands != nil:
		demands = a.cfg.Demands(action, form)
	case service == "sqs":
		demands[0].Resource = a.queueARN(body)
	case service == "iam" && action == "AddRoleToInstanceProfile":
		demands = append(demands, a.PassRole(form.Get("RoleName")))
	case service == "iam" && action == "CreateInstanceProfile" && len(tagsOf(form)) > 0:
		demands = append(demands, Demand{Action: "iam:TagInstanceProfile", Resource: "*"})
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	of := a.roles[caller.Role]
	for _, demand := range demands {
		if of != nil && of.permissions.allows(anybody, demand.Action, demand.Resource, demand.Keys) {
			a.allowed[demand.Action] = true
			continue
		}
		code := "AccessDenied"
		if service == "ec2" {
			code = "UnauthorizedOperation"
		}
		return &Error{http.StatusForbidden, code, fmt.Sprintf(
			"User: %s is not authorized to perform: %s on resource: %s because no identity-based policy allows the %s action",
			caller.ARN, demand.Action, demand.Resource, demand.Action)}
	}
	return nil
}
