// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

const (
	forbidden = http.StatusForbidden
	created   = http.StatusCreated

	// What the API server notes on an event: https://kubernetes.io/docs/reference/labels-annotations-taints/audit-annotations/
	decisionAnnotation = "authorization.k8s.io/decision"
	reasonAnnotation   = "authorization.k8s.io/reason"

	// unmapped is what the admission plugin OwnerReferencesPermissionEnforcement reports about an owner whose kind it doesn't know.
	unmapped = "cannot find RESTMapping"
)

// Event is a request, without what differs between two that need the same permission.
type Event struct {
	// User is whom the request was allowed or denied as.
	User string
	// UserAgent is the program that asked.
	UserAgent string
	Verb      string
	Group     string
	// Resource has the subresource, if any: pods/eviction. Empty for a URL that is no object's, such as /healthz.
	Resource  string
	Namespace string
	Name      string
	// Code is the HTTP status of the answer.
	Code int
	// Allowed: the authorizer didn't object; admission may have.
	Allowed bool
	// Reason is the authorizer's, which names the binding and the role.
	Reason string
	// Denied is when the authorizer objected; zero where it didn't.
	Denied time.Time
	// Unmapped is when admission refused an object because it didn't know the kind of its owner; zero where it didn't.
	Unmapped time.Time
}

// String is such as: patch deployments.apps clusters-blue/karpenter.
func (e Event) String() string {
	s := Permission{Group: e.Group, Resource: e.Resource, Verb: e.Verb}.String()
	switch {
	case e.Namespace != "":
		s += " " + e.Namespace + "/" + e.Name
	case e.Name != "":
		s += " " + e.Name
	}
	return s
}

// by reports whether this role is what allowed the request. Where two do, the authorizer names one.
func (e Event) by(grant Grant) bool {
	return e.Allowed && strings.Contains(e.Reason, fmt.Sprintf(" of %s %q to ", grant.Kind, grant.Name))
}

// uses reports whether the request needs the permission. Admission checks some permissions in addition to the request's
// own, which leaves no trace.
func (e Event) uses(p Permission) bool {
	if e.Group != p.Group || p.Name != "" && p.Name != e.Name && p.Verb != "bind" {
		return false
	}
	wrote := (e.Verb == "create" || e.Verb == "patch" || e.Verb == "update") && e.Code < http.StatusBadRequest
	switch p.Verb {
	case "bind": // asked of the role when a binding to it is written
		return wrote && strings.HasSuffix(e.Resource, "rolebindings")
	case "escalate": // asked of the role when it is written
		return wrote && e.Resource == p.Resource
	case "list": // newer API servers stream to an informer, in its watch, what it has to list of older ones
		return e.Resource == p.Resource && (e.Verb == "list" || e.Verb == "watch")
	case "create": // asked, too, of whoever applies what isn't there yet
		return e.Resource == p.Resource && (e.Verb == "create" || wrote && e.Code == created)
	}
	return e.Resource == p.Resource && e.Verb == p.Verb
}

// Read reads an audit log and returns each different event once.
func Read(log io.Reader) ([]Event, error) {
	seen := map[Event]bool{}
	var events []Event
	_, err := Each(log, func(r *Record) {
		event := Event{
			User: cmp.Or(r.ImpersonatedUser.Username, r.User.Username), UserAgent: r.UserAgent, Verb: r.Verb, Code: r.ResponseStatus.Code,
			Allowed: r.Annotations[decisionAnnotation] == "allow", Reason: r.Annotations[reasonAnnotation],
			Resource: r.Resource(),
		}
		if ref := r.ObjectRef; ref != nil {
			event.Group, event.Namespace, event.Name = ref.APIGroup, ref.Namespace, ref.Name
		}
		if r.Annotations[decisionAnnotation] == "forbid" {
			event.Denied = r.StageTimestamp.Truncate(time.Second)
		}
		if event.Allowed && event.Code == forbidden && strings.Contains(r.ResponseStatus.Message, unmapped) {
			event.Unmapped = r.StageTimestamp.Truncate(time.Second)
		}
		if !seen[event] {
			seen[event] = true
			events = append(events, event)
		}
	})
	if err != nil {
		return nil, err
	}
	return events, nil
}
