// SPDX-License-Identifier: Apache-2.0

package check

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/manifests"
)

// reviews is how many permissions are asked about at a time.
const reviews = 8

// permission is what one access review is about.
type permission struct{ namespace, verb, group, resource, name string }

func (p permission) String() string {
	text := p.verb + " " + p.resource
	if p.group != "" {
		text += "." + p.group
	}
	if p.name != "" {
		text += " " + p.name
	}
	if p.namespace != "" {
		text += " in namespace " + p.namespace
	}
	return text
}

func (p permission) attributes() *authorizationv1.ResourceAttributes {
	resource, subresource, _ := strings.Cut(p.resource, "/")
	return &authorizationv1.ResourceAttributes{
		Namespace: p.namespace, Verb: p.verb, Group: p.group, Resource: resource, Subresource: subresource, Name: p.name,
	}
}

// permissionsOf returns those of rules.
func permissionsOf(namespace string, rules []rbacv1.PolicyRule) []permission {
	var all []permission
	for i := range rules {
		names := rules[i].ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, group := range rules[i].APIGroups {
			for _, resource := range rules[i].Resources {
				for _, verb := range rules[i].Verbs {
					for _, name := range names {
						all = append(all, permission{namespace, verb, group, resource, name})
					}
				}
			}
		}
	}
	return all
}

// needed returns what the operator of this program's version may do.
func (m *managementCheck) needed() ([]permission, error) {
	var all []permission
	for _, object := range m.installed {
		if object.GetName() != manifests.Operator || object.GetKind() != "ClusterRole" && object.GetKind() != "Role" {
			continue
		}
		namespace, role := "", &rbacv1.ClusterRole{} // whose rules a Role's are like
		if object.GetKind() == "Role" {
			namespace = m.operatorNamespace
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, role); err != nil {
			return nil, fmt.Errorf("decoding %s %s: %w", object.GetKind(), object.GetName(), err)
		}
		all = append(all, permissionsOf(namespace, role.Rules)...)
	}
	return all, nil
}

// operatorRights checks with the API server whether the operator may do what it needs to.
func (m *managementCheck) operatorRights(ctx context.Context) {
	const subject = "Rights of the operator"
	if len(m.operators) == 0 {
		return
	}
	account := cmp.Or(m.operators[0].Spec.Template.Spec.ServiceAccountName, "default")
	user := "system:serviceaccount:" + m.operatorNamespace + ":" + account
	needed, err := m.needed()
	if err != nil {
		m.unread(subject, err)
		return
	}
	var mu sync.Mutex
	var lacks []string
	asking, ctx := errgroup.WithContext(ctx)
	asking.SetLimit(reviews)
	for _, p := range needed {
		asking.Go(func() error {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: user, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + m.operatorNamespace, "system:authenticated"},
				ResourceAttributes: p.attributes(),
			}}
			if err := m.Create(ctx, review); err != nil {
				return err
			}
			if !review.Status.Allowed {
				mu.Lock()
				defer mu.Unlock()
				lacks = append(lacks, p.String())
			}
			return nil
		})
	}
	switch err := asking.Wait(); {
	case err != nil:
		m.unread(subject, err)
	case len(lacks) > 0:
		slices.Sort(lacks)
		m.wrong(subject, installFix, "ServiceAccount %s/%s may not: %s", m.operatorNamespace, account, some(lacks))
	default:
		m.ok(subject, "ServiceAccount %s/%s has all %d permissions", m.operatorNamespace, account, len(needed))
	}
}

// userRights checks whether the user may turn AutoNode on.
func (m *managementCheck) userRights(ctx context.Context) {
	const subject = "Your rights"
	var lacks []string
	for _, p := range []permission{
		{m.userNamespace, "create", v1beta1.GroupVersion.Group, "hostedclusters", ""},
		{m.userNamespace, "patch", clusterv1.GroupVersion.Group, "clusters", ""},
	} {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: p.attributes()}}
		if err := m.Create(ctx, review); err != nil {
			m.unread(subject, err)
			return
		}
		if !review.Status.Allowed {
			lacks = append(lacks, p.String())
		}
	}
	if len(lacks) > 0 {
		m.warn(subject, "choose a namespace in which you may, or ask for a role there", "to turn AutoNode on for a Cluster you lack the right to %s", strings.Join(lacks, ", and to "))
		return
	}
	m.ok(subject, "you may turn AutoNode on for Clusters in namespace %s", m.userNamespace)
}

// some names the first of many.
func some(texts []string) string {
	const few = 5
	if more := len(texts) - few; more > 0 {
		return fmt.Sprintf("%s; and %d more", strings.Join(texts[:few], "; "), more)
	}
	return strings.Join(texts, "; ")
}
