// SPDX-License-Identifier: Apache-2.0

// Package guest holds what the operator applies in a guest cluster so that Karpenter may work there, one object per file.
package guest

import (
	_ "embed"
	"errors"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/autonode-io/autonode/assets/manifest"
)

var (
	//go:embed serviceaccount.yaml
	serviceAccount []byte
	//go:embed clusterrole.yaml
	clusterRole []byte
	//go:embed clusterrolebinding.yaml
	clusterRoleBinding []byte
)

// Access returns Karpenter's identity in the guest cluster, what it may do there, and what binds the two.
func Access() (*corev1.ServiceAccount, *rbacv1.ClusterRole, *rbacv1.ClusterRoleBinding, error) {
	account, accountErr := ServiceAccount()
	role, roleErr := ClusterRole()
	binding, bindingErr := ClusterRoleBinding()
	return account, role, binding, errors.Join(accountErr, roleErr, bindingErr)
}

// ClusterRole returns what Karpenter with the provider for Cluster API may do in the guest cluster.
func ClusterRole() (*rbacv1.ClusterRole, error) {
	return manifest.Decode(clusterRole, &rbacv1.ClusterRole{})
}

// ClusterRoleBinding binds Karpenter's identity to the ClusterRole of that name, whichever provider's it is.
func ClusterRoleBinding() (*rbacv1.ClusterRoleBinding, error) {
	return manifest.Decode(clusterRoleBinding, &rbacv1.ClusterRoleBinding{})
}

// ServiceAccount returns Karpenter's identity in the guest cluster.
func ServiceAccount() (*corev1.ServiceAccount, error) {
	return manifest.Decode(serviceAccount, &corev1.ServiceAccount{})
}
