// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
)

// Request is one kind of request: what differs between two objects is left out.
type Request struct {
	// User asked; of nodes and of bootstrap tokens, all are one.
	User string `json:"user"`
	// Agent is the program that asked, with the controller in it where the program reports that.
	Agent string `json:"agent"`
	Verb  string `json:"verb"`
	// Resource has the subresource, if any.
	Resource string `json:"resource"`
	// Code is the HTTP status of the answer.
	Code int `json:"code"`
}

// Conflict reports that what was to be written had changed meanwhile, or was there already.
func (r Request) Conflict() bool { return r.Code == http.StatusConflict }

// Traffic is how often each kind of request was answered.
type Traffic map[Request]int

// Add counts what is about an object, once each. A watch counts as it begins, because it may not end.
func (t Traffic) Add(r *Record) {
	stage := "ResponseComplete"
	if r.Verb == "watch" {
		stage = "ResponseStarted"
	}
	if resource := r.Resource(); resource != "" && r.Stage == stage {
		t[Request{User: user(r.User.Username), Agent: agent(r.UserAgent), Verb: r.Verb, Resource: resource, Code: r.ResponseStatus.Code}]++
	}
}

// Total is how many of the requests match.
func (t Traffic) Total(match func(Request) bool) int {
	total := 0
	for request, n := range t {
		if match(request) {
			total += n
		}
	}
	return total
}

// Sorted are the kinds of requests, the most frequent first.
func (t Traffic) Sorted() []Request {
	requests := make([]Request, 0, len(t))
	for request := range t {
		requests = append(requests, request)
	}
	slices.SortFunc(requests, func(a, b Request) int {
		return cmp.Or(t[b]-t[a], strings.Compare(a.Resource, b.Resource), strings.Compare(a.Verb, b.Verb),
			strings.Compare(a.Agent, b.Agent), strings.Compare(a.User, b.User), a.Code-b.Code)
	})
	return requests
}

func user(name string) string {
	for _, prefix := range []string{"system:node:", "system:bootstrap:"} {
		if strings.HasPrefix(name, prefix) {
			return prefix + "*"
		}
	}
	return name
}

// agent shortens a user agent such as "kube-controller-manager/v1.36.3 (linux/amd64) kubernetes/0000000/system:serviceaccount:kube-system:replicaset-controller"
// to "kube-controller-manager replicaset-controller".
func agent(userAgent string) string {
	name, rest, _ := strings.Cut(userAgent, "/")
	if _, commit, ok := strings.Cut(rest, " kubernetes/"); ok {
		if _, part, ok := strings.Cut(commit, "/"); ok {
			name += " " + strings.TrimPrefix(part, "system:serviceaccount:kube-system:")
		}
	}
	return name
}
