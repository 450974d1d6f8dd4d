// SPDX-License-Identifier: Apache-2.0

// Package guest holds the objects that the operator applies in a guest cluster for Karpenter, one object per file.
package guest

import (
	_ "embed"
	"errors"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/autonode-io/autonode/assets/manifest"
)

var (
	//go:embed serviceaccount.yaml
	serviceAccount []byte
	//go:embed clusterrole.yaml
	clusterRole []byte
	//go:embed rules-capacitybuffer.yaml
	capacityBufferRules []byte
	//go:embed rules-dynamicresourceallocation.yaml
	dynamicResourceRules []byte
	//go:embed rules-poddeletioncost.yaml
	podDeletionCostRules []byte
	//go:embed rules-topologyspread.yaml
	topologySpreadRules []byte
	//go:embed clusterrolebinding.yaml
	clusterRoleBinding []byte
	//go:embed clusterrolebinding-renewals.yaml
	renewalsBinding []byte
	//go:embed role.yaml
	role []byte
	//go:embed rolebinding.yaml
	roleBinding []byte
	//go:embed policy-nodeclasses.yaml
	nodeClassPolicy []byte
	//go:embed policy-nodeclaims.yaml
	nodeClaimPolicy []byte
	//go:embed policy-nodepools.yaml
	nodePoolPolicy []byte
	//go:embed policy-managed.yaml
	managedPolicy []byte
	//go:embed policy-tokens.yaml
	tokenPolicy []byte
	//go:embed policy-bootstraptokens.yaml
	bootstrapTokenPolicy []byte
	//go:embed policy-pods.yaml
	podPolicy []byte
	//go:embed policybinding.yaml
	policyBinding []byte
)

// Access returns Karpenter's identity in the guest cluster, its permissions there, and the binding of the two.
func Access() (*corev1.ServiceAccount, *rbacv1.ClusterRole, *rbacv1.ClusterRoleBinding, error) {
	account, accountErr := ServiceAccount()
	role, roleErr := ClusterRole()
	binding, bindingErr := ClusterRoleBinding()
	return account, role, binding, errors.Join(accountErr, roleErr, bindingErr)
}

// ClusterRole returns the permissions in the guest cluster of Karpenter with the provider for Cluster API.
func ClusterRole() (*rbacv1.ClusterRole, error) {
	return manifest.Decode(clusterRole, &rbacv1.ClusterRole{})
}

// CapacityBufferRules returns any Karpenter's permissions beside its ClusterRole while the feature gate CapacityBuffer is on.
func CapacityBufferRules() ([]rbacv1.PolicyRule, error) { return rules(capacityBufferRules) }

// DynamicResourceRules returns any Karpenter's permissions beside its ClusterRole while it heeds dynamic resource allocation.
func DynamicResourceRules() ([]rbacv1.PolicyRule, error) { return rules(dynamicResourceRules) }

// PodDeletionCostRules returns any Karpenter's permissions beside its ClusterRole while the feature gate PodDeletionCostManagement is on.
func PodDeletionCostRules() ([]rbacv1.PolicyRule, error) { return rules(podDeletionCostRules) }

// TopologySpreadRules returns any Karpenter's permissions beside its ClusterRole while pods have default topology spread constraints.
func TopologySpreadRules() ([]rbacv1.PolicyRule, error) { return rules(topologySpreadRules) }

func rules(document []byte) ([]rbacv1.PolicyRule, error) {
	role, err := manifest.Decode(document, &rbacv1.ClusterRole{})
	if err != nil {
		return nil, err
	}
	return role.Rules, nil
}

// ClusterRoleBinding binds Karpenter's identity to the ClusterRole of that name, whichever provider's it is.
func ClusterRoleBinding() (*rbacv1.ClusterRoleBinding, error) {
	return manifest.Decode(clusterRoleBinding, &rbacv1.ClusterRoleBinding{})
}

// ServiceAccount returns Karpenter's identity in the guest cluster.
func ServiceAccount() (*corev1.ServiceAccount, error) {
	return manifest.Decode(serviceAccount, &corev1.ServiceAccount{})
}

// Roles returns the permissions in namespaces of the guest cluster of Karpenter with the provider for Cluster API, and their binding to its
// identity.
func Roles() (*rbacv1.Role, *rbacv1.RoleBinding, error) {
	role, roleErr := manifest.Decode(role, &rbacv1.Role{})
	binding, bindingErr := manifest.Decode(roleBinding, &rbacv1.RoleBinding{})
	return role, binding, errors.Join(roleErr, bindingErr)
}

// RenewalsBinding lets kube-controller-manager approve the renewals of nodes' client certificates.
func RenewalsBinding() (*rbacv1.ClusterRoleBinding, error) {
	return manifest.Decode(renewalsBinding, &rbacv1.ClusterRoleBinding{})
}

// BootstrapTokenPolicy is the name of the admission policy that bounds Karpenter's own bootstrap tokens.
const BootstrapTokenPolicy = "bootstraptokens.autonode.io"

// PodPolicy is the name of the admission policy that bounds Karpenter's own changes of pods.
const PodPolicy = "pods.autonode.io"

// NodeClassPolicy is the name of the admission policy about node classes.
const NodeClassPolicy = "nodeclasses.autonode.io"

// Policies returns the admission policies that guard the platform's objects in the guest cluster, and those that bound Karpenter.
func Policies() ([]*admissionregistrationv1.ValidatingAdmissionPolicy, error) {
	var policies []*admissionregistrationv1.ValidatingAdmissionPolicy
	for _, data := range [][]byte{
		managedPolicy, nodeClaimPolicy, nodePoolPolicy, nodeClassPolicy, tokenPolicy, bootstrapTokenPolicy, podPolicy,
	} {
		policy, err := manifest.Decode(data, &admissionregistrationv1.ValidatingAdmissionPolicy{})
		if err != nil {
			return nil, err
		}
		policies = append(policies, policy)
	}
	return policies, nil
}

// PolicyBinding returns the binding of a policy, without the policy's name.
func PolicyBinding() (*admissionregistrationv1.ValidatingAdmissionPolicyBinding, error) {
	return manifest.Decode(policyBinding, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{})
}
