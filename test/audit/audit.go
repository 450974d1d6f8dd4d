// SPDX-License-Identifier: Apache-2.0

// Package audit compares what an identity may do in a cluster with what the audit logs of API servers say that it did there.
package audit

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
)

// Identity is who sends requests: one ServiceAccount, or those of several tenants that have the same job.
type Identity struct {
	// Name is what findings and exceptions call it.
	Name string
	// Grants are the roles that it is bound to.
	Grants []Grant
	// Events are what it asked, of every API server that was meant.
	Events []Event
	// Starts are when those API servers were started. One that has just started answers before it has read all roles.
	Starts []Start
	// Declared: a person declared Grants, and no API server enforces them. An undeclared request is a finding, an
	// unused grant isn't.
	Declared bool
}

// Start of an API server: from when its process began until it was ready.
type Start struct{ Begun, Ready time.Time }

// Unread is for how long after it is ready an API server may not have read all roles. What it denies later it denies.
const Unread = 15 * time.Second

// Undiscovered is for how long after it is ready an API server's admission may not know the kinds of CRDs. It looks every 30 seconds.
const Undiscovered = 30*time.Second + Unread

// starting reports whether an API server was started less than this long before a time, counted from when it was ready.
func (i Identity) starting(at time.Time, lately time.Duration) bool {
	return slices.ContainsFunc(i.Starts, func(s Start) bool { return !at.Before(s.Begun.Truncate(time.Second)) && !at.After(s.Ready.Add(lately)) })
}

// Grant is a role that an identity is bound to.
type Grant struct {
	// Kind is Role or ClusterRole.
	Kind, Name string
	// Namespace is a Role's.
	Namespace string
	Rules     []rbacv1.PolicyRule
}

// covers reports whether the role allows the request.
func (g Grant) covers(e Event) bool {
	if g.Namespace != "" && g.Namespace != e.Namespace {
		return false
	}
	return slices.ContainsFunc(g.Rules, func(rule rbacv1.PolicyRule) bool {
		return slices.Contains(rule.APIGroups, e.Group) && slices.Contains(rule.Resources, e.Resource) && slices.Contains(rule.Verbs, e.Verb) &&
			(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, e.Name))
	})
}

// Permission is the smallest part of a rule.
type Permission struct {
	Group, Resource string
	// Name is that of the only object that is meant, empty for all.
	Name string
	Verb string
}

// String is such as: patch deployments.apps "karpenter".
func (p Permission) String() string {
	s := p.Verb + " " + p.Resource
	if p.Group != "" {
		s += "." + p.Group
	}
	if p.Name != "" {
		s += fmt.Sprintf(" %q", p.Name)
	}
	return s
}

// Exception is a permission that no test uses although it is needed, or one whose use has to be denied.
type Exception struct {
	// Identity is the Name of one.
	Identity string
	Group    string
	// Resources may have a subresource: pods/eviction.
	Resources []string
	// Names are those of the objects, if the rule names any. AnyName stands for every rule that does.
	Names []string
	Verbs []string
	// Reason is what needs it, and why no test does.
	Reason string
	// Sometimes: it depends on timing whether a test uses it.
	Sometimes bool
	// Denied: requests for it are made, and have to be denied.
	Denied bool
}

// AnyName is a name in an Exception whose rules name objects that aren't known beforehand.
const AnyName = "*"

// matching are those of the granted permissions that the exception is about; with none of them, what it names itself.
func (e Exception) matching(granted map[Permission]bool) []Permission {
	var matching []Permission
	for _, permission := range e.permissions() {
		if permission.Name != AnyName {
			matching = append(matching, permission)
			continue
		}
		named := len(matching)
		for other := range granted {
			if other.Name != "" && other == (Permission{Group: permission.Group, Resource: permission.Resource, Name: other.Name, Verb: permission.Verb}) {
				matching = append(matching, other)
			}
		}
		if len(matching) == named {
			matching = append(matching, permission)
		}
	}
	return matching
}

func (e Exception) permissions() []Permission {
	return expand(rbacv1.PolicyRule{APIGroups: []string{e.Group}, Resources: e.Resources, ResourceNames: e.Names, Verbs: e.Verbs})
}

// Compare returns what is wrong with an identity's permissions, sorted: those that nothing used and no exception explains, wildcards, what was
// refused, and exceptions for what is used or isn't granted.
func Compare(identity Identity, exceptions []Exception) []string {
	found := map[string]bool{}
	report := func(format string, args ...any) { found[identity.Name+": "+fmt.Sprintf(format, args...)] = true }

	if len(identity.Grants) == 0 {
		report("it is bound to no role; the comparison came too late")
	}
	if len(identity.Events) == 0 {
		report("it made no request; is there an audit log?")
	}
	granted := map[Permission]bool{} // and whether it was used
	for _, grant := range identity.Grants {
		for _, rule := range grant.Rules {
			if wild := wildcards(rule); wild != "" {
				report("%s %s has the wildcard %s; name what is needed", grant.Kind, grant.Name, wild)
				continue
			}
			if len(rule.NonResourceURLs) > 0 {
				report("%s %s grants the URLs %v, which are in no audit log's objects", grant.Kind, grant.Name, rule.NonResourceURLs)
			}
			for _, permission := range expand(rule) {
				granted[permission] = granted[permission] || slices.ContainsFunc(identity.Events, func(e Event) bool {
					return e.by(grant) && e.uses(permission)
				})
			}
		}
	}

	excused := map[Permission]bool{}
	for _, exception := range exceptions {
		if exception.Identity != identity.Name {
			continue
		}
		for _, permission := range exception.matching(granted) {
			if exception.Denied {
				if !slices.ContainsFunc(identity.Events, func(e Event) bool { return !e.Allowed && e.uses(permission) }) {
					report("the exception for %s is stale: it wasn't denied", permission)
				}
				continue
			}
			used, ok := granted[permission]
			switch {
			case !ok:
				report("the exception for %s is stale: it isn't granted", permission)
			case used && !exception.Sometimes:
				report("the exception for %s is stale: it is used", permission)
			}
			excused[permission] = true
		}
	}
	for permission, used := range granted {
		if !identity.Declared && !used && !excused[permission] {
			report("may %s and never did; remove that from the rule, or write a test that needs it", permission)
		}
	}
	for _, finding := range Refused(identity, exceptions) {
		found[finding] = true
	}
	return slices.Sorted(maps.Keys(found))
}

// Refused returns an identity's denied requests, sorted, without those that an exception expects.
func Refused(identity Identity, exceptions []Exception) []string {
	denied := map[Permission]bool{}
	for _, exception := range exceptions {
		if exception.Denied && exception.Identity == identity.Name {
			for _, permission := range exception.permissions() {
				denied[permission] = true
			}
		}
	}
	found := map[string]bool{}
	report := func(format string, args ...any) { found[identity.Name+": "+fmt.Sprintf(format, args...)] = true }
	for _, event := range identity.Events {
		switch {
		case event.Resource == "":
			// URLs that are no object's are Kubernetes' own roles' matter.
		case !event.Allowed && event.Code != forbidden:
			// The authorizer was never asked: the API server was busy or going, or the client went.
		case event.Allowed && identity.Declared && !slices.ContainsFunc(identity.Grants, func(g Grant) bool { return g.covers(event) }):
			report("does %s, which no grant declares; declare it, or stop it", event)
		case !event.Allowed && identity.starting(event.Denied, Unread) && slices.ContainsFunc(identity.Grants, func(g Grant) bool { return g.covers(event) }):
			// It will be allowed.
		case !event.Allowed && denied[Permission{Group: event.Group, Resource: event.Resource, Name: event.Name, Verb: event.Verb}]:
		case !event.Allowed:
			report("asked to %s and was denied; add that to a rule, or don't ask", event)
		case event.Code == forbidden && identity.starting(event.Unmapped, Undiscovered):
			// It will be admitted.
		case event.Code == forbidden:
			report("asked to %s and was refused by admission, or by the storage of roles", event)
		}
	}
	return slices.Sorted(maps.Keys(found))
}

func wildcards(rule rbacv1.PolicyRule) string {
	for _, field := range []struct {
		name   string
		values []string
	}{{"apiGroups", rule.APIGroups}, {"resources", rule.Resources}, {"verbs", rule.Verbs}, {"nonResourceURLs", rule.NonResourceURLs}} {
		for _, value := range field.values {
			if strings.Contains(value, "*") {
				return fmt.Sprintf("%s: %q", field.name, value)
			}
		}
	}
	return ""
}

func expand(rule rbacv1.PolicyRule) []Permission {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	var permissions []Permission
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, name := range names {
				for _, verb := range rule.Verbs {
					permissions = append(permissions, Permission{Group: group, Resource: resource, Name: name, Verb: verb})
				}
			}
		}
	}
	return permissions
}
