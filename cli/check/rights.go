// SPDX-License-Identifier: Apache-2.0

package check

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/message"
	"github.com/autonode-io/autonode/manifests"
)

// reviews is how many permissions are asked about at a time.
const reviews = 8

// permission is what one access review is about.
type permission authorizationv1.ResourceAttributes

func (p *permission) String() string {
	text := p.Verb + " " + schema.GroupResource{Group: p.Group, Resource: path.Join(p.Resource, p.Subresource)}.String()
	if p.Name != "" {
		text += " " + p.Name
	}
	if p.Namespace != "" {
		text += " in namespace " + p.Namespace
	}
	return text
}

// needed returns what the operator of this program's version may do.
func (m *managementCheck) needed() (all []permission, err error) {
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
		for _, rule := range role.Rules {
			if len(rule.ResourceNames) == 0 {
				rule.ResourceNames = []string{""}
			}
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					resource, subresource, _ := strings.Cut(resource, "/")
					for _, verb := range rule.Verbs {
						for _, name := range rule.ResourceNames {
							all = append(all, permission{Namespace: namespace, Verb: verb, Group: group, Resource: resource,
								Subresource: subresource, Name: name})
						}
					}
				}
			}
		}
	}
	return all, nil
}

// operatorMay checks with the API server whether the operator's ServiceAccount has a permission.
func operatorMay(ctx context.Context, management client.Writer, namespace, account string, p permission) (bool, error) {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: "system:serviceaccount:" + namespace + ":" + account, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" +
			namespace, "system:authenticated"},
		ResourceAttributes: (*authorizationv1.ResourceAttributes)(&p),
	}}
	err := management.Create(ctx, review)
	return review.Status.Allowed, err
}

// operatorRights checks whether the operator may do what it needs to.
func (m *managementCheck) operatorRights(ctx context.Context) {
	const subject = "Permissions of the operator"
	if len(m.operators) == 0 {
		return
	}
	account := cmp.Or(m.operators[0].Spec.Template.Spec.ServiceAccountName, "default")
	needed, err := m.needed()
	if err != nil {
		m.Unread(subject, err)
		return
	}
	lacks := make([]string, len(needed))
	asking, ctx := errgroup.WithContext(ctx)
	asking.SetLimit(reviews)
	for i, p := range needed {
		asking.Go(func() error {
			allowed, err := operatorMay(ctx, m.Client, m.operatorNamespace, account, p)
			if !allowed {
				lacks[i] = p.String()
			}
			return err
		})
	}
	err = asking.Wait()
	lacks = slices.DeleteFunc(lacks, func(lack string) bool { return lack == "" })
	switch {
	case err != nil:
		m.Unread(subject, err)
	case len(lacks) > 0:
		slices.Sort(lacks)
		m.wrong(subject, installFix, "ServiceAccount %s/%s may not: %s", m.operatorNamespace, account, some(lacks))
	default:
		m.ok(subject, "ServiceAccount %s/%s has all %d permissions", m.operatorNamespace, account, len(needed))
	}
}

// userRights checks whether the user may turn AutoNode on.
func (m *managementCheck) userRights(ctx context.Context) {
	const subject = "Your permissions"
	var lacks []string
	for _, p := range []permission{
		{Namespace: m.userNamespace, Verb: "create", Group: v1beta1.GroupVersion.Group, Resource: "hostedclusters"},
		{Namespace: m.userNamespace, Verb: "patch", Group: clusterv1.GroupVersion.Group, Resource: "clusters"},
	} {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: (*authorizationv1.ResourceAttributes)(&p)}}
		if err := m.Create(ctx, review); err != nil {
			m.Unread(subject, err)
			return
		}
		if !review.Status.Allowed {
			lacks = append(lacks, p.String())
		}
	}
	if len(lacks) > 0 {
		m.warn(subject, "choose a namespace where you have them, or ask for a role there",
			"to turn AutoNode on for a Cluster you lack the permissions to %s", strings.Join(lacks, ", and to "))
		return
	}
	m.ok(subject, "you may turn AutoNode on for Clusters in namespace %s", m.userNamespace)
}

// some names the first of many.
func some(texts []string) string { return message.List(texts, 5, "; ") }
