// SPDX-License-Identifier: Apache-2.0

package connection

import (
	"fmt"
	"strings"
	"sync"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// kubernetes has the kinds that every guest serves, for all guests. A guest's own discovery of three hundred kinds
// costs a quarter of a MiB.
var kubernetes = func() meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper(nil)
	add := func(scope meta.RESTScope, version schema.GroupVersion, kinds ...string) {
		for _, kind := range kinds {
			mapper.Add(version.WithKind(kind), scope)
		}
	}
	add(meta.RESTScopeNamespace, corev1.SchemeGroupVersion, "Pod", "Secret", "ServiceAccount")
	add(meta.RESTScopeNamespace, coordinationv1.SchemeGroupVersion, "Lease")
	add(meta.RESTScopeNamespace, policyv1.SchemeGroupVersion, "PodDisruptionBudget")
	add(meta.RESTScopeNamespace, rbacv1.SchemeGroupVersion, "Role", "RoleBinding")
	add(meta.RESTScopeRoot, corev1.SchemeGroupVersion, "Namespace", "Node")
	add(meta.RESTScopeRoot, rbacv1.SchemeGroupVersion, "ClusterRole", "ClusterRoleBinding")
	add(meta.RESTScopeRoot, admissionregistrationv1.SchemeGroupVersion, "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
	add(meta.RESTScopeRoot, apiextensionsv1.SchemeGroupVersion, "CustomResourceDefinition")
	add(meta.RESTScopeRoot, authenticationv1.SchemeGroupVersion, "TokenReview")
	add(meta.RESTScopeRoot, authorizationv1.SchemeGroupVersion, "SubjectAccessReview", "SelfSubjectAccessReview")
	add(meta.RESTScopeRoot, certificatesv1.SchemeGroupVersion, "CertificateSigningRequest")
	return mapper
}()

// mapper maps kinds to the resources of one guest. It queries the guest for a group's version when a kind of it is first
// needed, and again for a kind that the answer lacked.
type mapper struct {
	meta.RESTMapper // of the kinds that every guest serves
	ask             func(groupVersion string) (*metav1.APIResourceList, error)

	mu    sync.Mutex
	known map[schema.GroupVersionKind]*meta.RESTMapping
}

func newMapper(ask func(groupVersion string) (*metav1.APIResourceList, error)) *mapper {
	return &mapper{RESTMapper: kubernetes, ask: ask, known: map[schema.GroupVersionKind]*meta.RESTMapping{}}
}

// RESTMapping implements meta.RESTMapper.
func (m *mapper) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	if mapping, err := m.RESTMapper.RESTMapping(kind, versions...); err == nil {
		return mapping, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, version := range versions {
		gvk := kind.WithVersion(version)
		if mapping, ok := m.known[gvk]; ok {
			return mapping, nil
		}
		resources, err := m.ask(gvk.GroupVersion().String())
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("asking the guest for the kinds of %s: %w", gvk.GroupVersion(), err)
		}
		for i := range resources.APIResources {
			r := &resources.APIResources[i]
			if r.Kind != kind.Kind || strings.Contains(r.Name, "/") { // another kind, or a subresource
				continue
			}
			mapping := &meta.RESTMapping{Resource: gvk.GroupVersion().WithResource(r.Name), GroupVersionKind: gvk, Scope: meta.RESTScopeRoot}
			if r.Namespaced {
				mapping.Scope = meta.RESTScopeNamespace
			}
			m.known[gvk] = mapping
			return mapping, nil
		}
	}
	return nil, &meta.NoKindMatchError{GroupKind: kind, SearchedVersions: versions}
}
