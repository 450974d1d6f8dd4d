// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
)

func reasonOf(kind, name string) string {
	return `RBAC: allowed by RoleBinding "karpenter/blue" of ` + kind + ` "` + name + `" to ServiceAccount "karpenter/blue"`
}

// did is an event that Role karpenter allowed.
func did(verb, group, resource, name string, code int) Event {
	return Event{Verb: verb, Group: group, Resource: resource, Namespace: "blue", Name: name, Code: code, Allowed: true, Reason: reasonOf("Role", "karpenter")}
}

func rule(group, resource string, verbs []string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, ResourceNames: names, Verbs: verbs}
}

const rbac = "rbac.authorization.k8s.io"

// ready is when the API server had started.
var ready = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// read is what every identity did here.
var read = did("list", "", "pods", "", 200)

// comparison is what an identity may do and did, and what is to be found.
type comparison struct {
	name       string
	rules      []rbacv1.PolicyRule
	events     []Event
	exceptions []Exception
	declared   bool
	want       []string
}

// compareAll compares each in a subtest.
func compareAll(t *testing.T, tests []comparison) {
	t.Helper()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			identity := Identity{Name: "karpenter", Events: test.events, Declared: test.declared, Starts: []Start{{Begun: ready.Add(-time.Minute), Ready: ready}}}
			if test.rules != nil {
				identity.Grants = []Grant{{Kind: "Role", Name: "karpenter", Rules: test.rules}}
			}
			got := Compare(identity, test.exceptions)
			if len(got) == 0 {
				got = nil
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// reading has each read pods, as it may; rules that it names are granted instead.
func reading(tests []comparison) []comparison {
	for i := range tests {
		tests[i].events = append([]Event{read}, tests[i].events...)
		if tests[i].rules == nil {
			tests[i].rules = []rbacv1.PolicyRule{rule("", "pods", []string{"list"})}
		}
	}
	return tests
}

func TestCompareUse(t *testing.T) {
	compareAll(t, []comparison{
		{
			name:   "When every permission was used, it should find nothing",
			rules:  []rbacv1.PolicyRule{rule("", "pods", []string{"list", "watch"}), rule("", "pods/eviction", []string{"create"})},
			events: []Event{read, did("watch", "", "pods", "", 200), did("create", "", "pods/eviction", "web", 429)},
		}, {
			name:   "When a verb was never used, it should say which",
			rules:  []rbacv1.PolicyRule{rule("apps", "deployments", []string{"list", "delete"}), rule("", "pods", []string{"list"})},
			events: []Event{read, did("list", "apps", "deployments", "", 200)},
			want:   []string{"karpenter: may delete deployments.apps and never did; remove that from the rule, or write a test that needs it"},
		}, {
			name:   "When the use was of a subresource, it should not count for the resource",
			rules:  []rbacv1.PolicyRule{rule("", "pods", []string{"list", "create"})},
			events: []Event{read, did("create", "", "pods/eviction", "web", 201)},
			want:   []string{"karpenter: may create pods and never did; remove that from the rule, or write a test that needs it"},
		}, {
			name:   "When only another name was used, it should say so",
			rules:  []rbacv1.PolicyRule{rule("", "pods", []string{"list"}), rule("", "secrets", []string{"get"}, "join")},
			events: []Event{read, did("get", "", "secrets", "kubeconfig", 200)},
			want:   []string{`karpenter: may get secrets "join" and never did; remove that from the rule, or write a test that needs it`},
		}, {
			name:   "When another role allowed it, it should not count: one of the two is too much",
			rules:  []rbacv1.PolicyRule{rule("", "pods", []string{"list"})},
			events: []Event{{Verb: "list", Resource: "pods", Allowed: true, Code: 200, Reason: reasonOf("ClusterRole", "karpenter")}},
			want:   []string{"karpenter: may list pods and never did; remove that from the rule, or write a test that needs it"},
		}, {
			name:   "When an object was made by applying it, it should count as its creation",
			rules:  []rbacv1.PolicyRule{rule("", "pods", []string{"list"}), rule("", "secrets", []string{"create", "patch"}, "join")},
			events: []Event{read, did("patch", "", "secrets", "join", 201)},
		}, {
			name:   "When an object was there before it was applied, it should not count as its creation",
			rules:  []rbacv1.PolicyRule{rule("", "pods", []string{"list"}), rule("", "secrets", []string{"create", "patch"}, "join")},
			events: []Event{read, did("patch", "", "secrets", "join", 200)},
			want:   []string{`karpenter: may create secrets "join" and never did; remove that from the rule, or write a test that needs it`},
		}, {
			name: "When roles and bindings were written, it should count as their escalation",
			rules: []rbacv1.PolicyRule{
				rule(rbac, "roles", []string{"patch", "escalate", "bind"}, "karpenter"), rule(rbac, "rolebindings", []string{"patch"}, "tenant"),
			},
			events: []Event{did("patch", rbac, "roles", "karpenter", 200), did("patch", rbac, "rolebindings", "tenant", 200)},
		}, {
			name:   "When no binding was written, it should find bind unused",
			rules:  []rbacv1.PolicyRule{rule(rbac, "roles", []string{"patch", "bind"}, "karpenter")},
			events: []Event{did("patch", rbac, "roles", "karpenter", 200)},
			want:   []string{`karpenter: may bind roles.rbac.authorization.k8s.io "karpenter" and never did; remove that from the rule, or write a test that needs it`},
		}, {
			name:   "When a rule has a wildcard, it should say so whatever was used",
			rules:  []rbacv1.PolicyRule{rule("infrastructure.cluster.x-k8s.io", "*", []string{"get"}), rule("", "pods", []string{"*"}), rule("*", "pods", []string{"get"})},
			events: []Event{read},
			want: []string{
				`karpenter: Role karpenter has the wildcard apiGroups: "*"; name what is needed`,
				`karpenter: Role karpenter has the wildcard resources: "*"; name what is needed`,
				`karpenter: Role karpenter has the wildcard verbs: "*"; name what is needed`,
			},
		}, {
			name:     "When what it may do is only written down, it should say what goes beyond",
			rules:    []rbacv1.PolicyRule{rule("", "pods", []string{"list"}), rule("", "nodes", []string{"list"})},
			events:   []Event{read, {Verb: "delete", Resource: "pods", Name: "web", Code: 200, Allowed: true}},
			declared: true,
			want: []string{
				"karpenter: does delete pods web, which no grant declares; declare it, or stop it",
			},
		}, {
			name:   "When an informer watches, it should count as its list",
			rules:  []rbacv1.PolicyRule{rule("", "pods", []string{"list", "watch"})},
			events: []Event{did("watch", "", "pods", "", 200)},
		}, {
			name: "When there is neither role nor event, it should not pass for the least there can be",
			want: []string{"karpenter: it is bound to no role; the comparison came too late", "karpenter: it made no request; is there an audit log?"},
		},
	})
}

func TestCompareDenials(t *testing.T) {
	compareAll(t, reading([]comparison{
		{
			name:   "When something was denied, it should say what, once",
			events: []Event{{Verb: "get", Resource: "secrets", Namespace: "blue", Name: "join", Code: 403}, {Verb: "get", Resource: "secrets", Namespace: "blue", Name: "join", Code: 403, UserAgent: "other"}},
			want:   []string{"karpenter: asked to get secrets blue/join and was denied; add that to a rule, or don't ask"},
		}, {
			name:   "When an API server answered before it asked the authorizer, it should not be a denial",
			events: []Event{{Verb: "list", Resource: "pods", Code: 429}, {Verb: "get", Resource: "secrets", Code: 503}},
		}, {
			name:   "When something that is granted was denied by an API server that had just started, it should not mind",
			events: []Event{{Verb: "list", Resource: "pods", Code: 403, Denied: ready.Add(Unread)}, {Verb: "get", Code: 403}},
		}, {
			name:   "When something that is granted now was denied long after an API server's start, it should say so",
			events: []Event{{Verb: "list", Resource: "pods", Code: 403, Denied: ready.Add(Unread + time.Second)}},
			want:   []string{"karpenter: asked to list pods and was denied; add that to a rule, or don't ask"},
		}, {
			name:   "When admission refused what a rule allows, it should say so",
			events: []Event{did("patch", rbac, "roles", "karpenter", 403)},
			want:   []string{"karpenter: asked to patch roles.rbac.authorization.k8s.io blue/karpenter and was refused by admission, or by the storage of roles"},
		}, {
			name:   "When admission of an API server that had just started didn't know the kind of an owner, it should not mind",
			events: []Event{{Verb: "patch", Resource: "secrets", Code: 403, Allowed: true, Unmapped: ready.Add(Undiscovered)}},
		}, {
			name:   "When admission doesn't know the kind of an owner long after an API server's start, it should say so",
			events: []Event{{Verb: "patch", Resource: "secrets", Name: "access", Code: 403, Allowed: true, Unmapped: ready.Add(Undiscovered + time.Second)}},
			want:   []string{"karpenter: asked to patch secrets access and was refused by admission, or by the storage of roles"},
		},
	}))
}

func TestCompareExceptions(t *testing.T) {
	compareAll(t, reading([]comparison{
		{
			name:       "When something has to be denied, it should not mind",
			events:     []Event{{Verb: "get", Resource: "secrets", Namespace: "blue", Name: "join", Code: 403}},
			exceptions: []Exception{{Identity: "karpenter", Resources: []string{"secrets"}, Names: []string{"join"}, Verbs: []string{"get"}, Denied: true}},
		}, {
			name:       "When something has to be denied and wasn't, it should say so",
			exceptions: []Exception{{Identity: "karpenter", Resources: []string{"secrets"}, Names: []string{"join"}, Verbs: []string{"get"}, Denied: true}},
			want:       []string{`karpenter: the exception for get secrets "join" is stale: it wasn't denied`},
		}, {
			name:       "When an exception explains what wasn't used, it should find nothing",
			rules:      []rbacv1.PolicyRule{rule("", "pods", []string{"list"}), rule("", "secrets", []string{"get"}, "join")},
			exceptions: []Exception{{Identity: "karpenter", Resources: []string{"secrets"}, Names: []string{"join"}, Verbs: []string{"get"}}},
		}, {
			name:       "When what an exception is for was used, it should call it stale",
			exceptions: []Exception{{Identity: "karpenter", Resources: []string{"pods"}, Verbs: []string{"list"}}},
			want:       []string{"karpenter: the exception for list pods is stale: it is used"},
		}, {
			name:       "When an exception allows for timing, it may be used or not",
			rules:      []rbacv1.PolicyRule{rule("", "pods", []string{"list", "watch"})},
			exceptions: []Exception{{Identity: "karpenter", Resources: []string{"pods"}, Verbs: []string{"list", "watch"}, Sometimes: true}},
		}, {
			name:       "When an exception names no object, it should excuse each that a rule names, and no more",
			rules:      []rbacv1.PolicyRule{rule("", "pods", []string{"list"}), rule("", "secrets", []string{"get"}, "join", "leave"), rule("", "secrets", []string{"list"})},
			exceptions: []Exception{{Identity: "karpenter", Resources: []string{"secrets"}, Names: []string{AnyName}, Verbs: []string{"get"}}},
			want:       []string{"karpenter: may list secrets and never did; remove that from the rule, or write a test that needs it"},
		}, {
			name:       "When an exception that names no object is for what no rule grants, it should call it stale",
			exceptions: []Exception{{Identity: "karpenter", Resources: []string{"secrets"}, Names: []string{AnyName}, Verbs: []string{"get"}, Sometimes: true}},
			want:       []string{`karpenter: the exception for get secrets "*" is stale: it isn't granted`},
		}, {
			name:       "When what an exception is for isn't granted, it should call it stale",
			exceptions: []Exception{{Identity: "karpenter", Group: "apps", Resources: []string{"daemonsets"}, Verbs: []string{"watch"}}, {Identity: "operator", Resources: []string{"nodes"}, Verbs: []string{"get"}}},
			want:       []string{"karpenter: the exception for watch daemonsets.apps is stale: it isn't granted"},
		},
	}))
}

func TestRead(t *testing.T) {
	const line = `{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"1","stage":"ResponseComplete","requestURI":"/x","verb":"create",` +
		`"user":{"username":"system:serviceaccount:blue:karpenter","groups":["system:serviceaccounts"]},"userAgent":"karpenter/1",` +
		`"objectRef":{"resource":"pods","namespace":"blue","name":"web","apiGroup":"","apiVersion":"v1","subresource":"eviction"},` +
		`"responseStatus":{"metadata":{},"code":201},"annotations":{"authorization.k8s.io/decision":"allow","authorization.k8s.io/reason":"because"}}`
	event := Event{
		User: "system:serviceaccount:blue:karpenter", UserAgent: "karpenter/1", Verb: "create", Resource: "pods/eviction", Namespace: "blue", Name: "web",
		Code: 201, Allowed: true, Reason: "because",
	}
	health := Event{Verb: "get", Code: 200}
	for _, test := range []struct {
		name, log string
		want      []Event
		wantErr   string
	}{
		{name: "When requests are the same, it should keep one", log: line + "\n" + line + "\n" + `{"verb":"get","requestURI":"/healthz","responseStatus":{"code":200}}` + "\n", want: []Event{event, health}},
		{name: "When a user impersonates another, it should be the other's", want: []Event{{User: "cluster-api", Verb: "get", Code: 200}},
			log: `{"verb":"get","user":{"username":"fault-proxy"},"impersonatedUser":{"username":"cluster-api"},"responseStatus":{"code":200}}` + "\n"},
		{name: "When something was denied, it should say when", want: []Event{{Verb: "get", Resource: "pods", Code: 403, Denied: time.Date(2026, 1, 1, 12, 0, 1, 0, time.UTC)}},
			log: `{"verb":"get","stageTimestamp":"2026-01-01T12:00:01.5Z","objectRef":{"resource":"pods"},"responseStatus":{"code":403},"annotations":{"authorization.k8s.io/decision":"forbid"}}` + "\n"},
		{name: "When admission didn't know an owner's kind, it should say when", want: []Event{{
			Verb: "patch", Resource: "secrets", Code: 403, Allowed: true, Unmapped: time.Date(2026, 1, 1, 12, 0, 1, 0, time.UTC),
		}},
			log: `{"verb":"patch","stageTimestamp":"2026-01-01T12:00:01.5Z","objectRef":{"resource":"secrets"},"responseStatus":{"code":403,"message":"secrets \"a\" is forbidden: ` +
				`cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion v1"},"annotations":{"authorization.k8s.io/decision":"allow"}}` + "\n"},
		{name: "When the last line isn't finished, it should leave it out", log: line + "\n" + line[:100], want: []Event{event}},
		{name: "When a line is broken, it should say which", log: line + "\n{\n", wantErr: "line 2"},
		{name: "When there is nothing, it should return nothing"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := Read(strings.NewReader(test.log))
			if (err != nil) != (test.wantErr != "") || err != nil && !strings.Contains(err.Error(), test.wantErr) {
				t.Fatalf("got error %v", err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
