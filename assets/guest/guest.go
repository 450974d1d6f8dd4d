// SPDX-License-Identifier: Apache-2.0

// Package guest holds what the operator applies in a guest cluster so that Karpenter may work there, one object per file.
package guest

import (
	_ "embed"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

var (
	//go:embed serviceaccount.yaml
	serviceAccount []byte
	//go:embed clusterrole.yaml
	clusterRole []byte
	//go:embed clusterrolebinding.yaml
	clusterRoleBinding []byte
)

// ServiceAccount returns Karpenter's identity in the guest cluster.
func ServiceAccount() (*corev1.ServiceAccount, error) {
	return decode(serviceAccount, &corev1.ServiceAccount{})
}

// ClusterRole returns what Karpenter may do in the guest cluster.
func ClusterRole() (*rbacv1.ClusterRole, error) {
	return decode(clusterRole, &rbacv1.ClusterRole{})
}

// ClusterRoleBinding returns what binds ServiceAccount and ClusterRole.
func ClusterRoleBinding() (*rbacv1.ClusterRoleBinding, error) {
	return decode(clusterRoleBinding, &rbacv1.ClusterRoleBinding{})
}

// decode rejects fields that the type doesn't have: a typo in an asset is found by the first test that renders it.
func decode[T client.Object](data []byte, into T) (T, error) {
	if err := yaml.UnmarshalStrict(data, into); err != nil {
		return into, fmt.Errorf("decoding %T: %w", into, err)
	}
	return into, nil
}
