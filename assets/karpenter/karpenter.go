// SPDX-License-Identifier: Apache-2.0

// Package karpenter holds what makes Karpenter up in a control-plane namespace, one object per file. The files read like what
// runs; the operator sets the namespace and what its adapt functions name.
package karpenter

import (
	_ "embed"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

var (
	//go:embed serviceaccount.yaml
	serviceAccount []byte
	//go:embed role.yaml
	role []byte
	//go:embed rolebinding.yaml
	roleBinding []byte
	//go:embed deployment.yaml
	deployment []byte
	//go:embed poddisruptionbudget.yaml
	podDisruptionBudget []byte
	//go:embed podmonitor.yaml
	podMonitor []byte
)

// ServiceAccount returns Karpenter's identity in the management cluster.
func ServiceAccount() (*corev1.ServiceAccount, error) {
	return decode(serviceAccount, &corev1.ServiceAccount{})
}

// Role returns what Karpenter may do in its control-plane namespace, without the kinds that a cluster's own spec adds.
func Role() (*rbacv1.Role, error) {
	return decode(role, &rbacv1.Role{})
}

// RoleBinding returns what binds ServiceAccount and Role.
func RoleBinding() (*rbacv1.RoleBinding, error) {
	return decode(roleBinding, &rbacv1.RoleBinding{})
}

// Deployment returns what runs Karpenter, without an image.
func Deployment() (*appsv1.Deployment, error) {
	return decode(deployment, &appsv1.Deployment{})
}

// PodDisruptionBudget returns what keeps one replica while management nodes are drained.
func PodDisruptionBudget() (*policyv1.PodDisruptionBudget, error) {
	return decode(podDisruptionBudget, &policyv1.PodDisruptionBudget{})
}

// PodMonitor returns what has Prometheus scrape Karpenter. Its kind isn't served everywhere.
func PodMonitor() (*unstructured.Unstructured, error) {
	return decode(podMonitor, &unstructured.Unstructured{})
}

// decode rejects fields that the type doesn't have: a typo in an asset is found by the first test that renders it.
func decode[T client.Object](data []byte, into T) (T, error) {
	if err := yaml.UnmarshalStrict(data, into); err != nil {
		return into, fmt.Errorf("decoding %T: %w", into, err)
	}
	return into, nil
}
