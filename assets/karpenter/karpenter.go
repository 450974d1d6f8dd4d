// SPDX-License-Identifier: Apache-2.0

// Package karpenter holds Karpenter's objects in a control-plane namespace, one object per file. The files read like the running
// objects; the operator sets the namespace and the fields that its adapt functions name.
package karpenter

import (
	_ "embed"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/autonode-io/autonode/assets/manifest"
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
	//go:embed networkpolicy.yaml
	networkPolicy []byte
	//go:embed podmonitor.yaml
	podMonitor []byte
)

// ServiceAccount returns Karpenter's identity in the management cluster.
func ServiceAccount() (*corev1.ServiceAccount, error) {
	return manifest.Decode(serviceAccount, &corev1.ServiceAccount{})
}

// Role returns Karpenter's permissions in its control-plane namespace, without the kinds that a cluster's own spec adds.
func Role() (*rbacv1.Role, error) {
	return manifest.Decode(role, &rbacv1.Role{})
}

// RoleBinding returns the binding of ServiceAccount and Role.
func RoleBinding() (*rbacv1.RoleBinding, error) {
	return manifest.Decode(roleBinding, &rbacv1.RoleBinding{})
}

// Deployment returns Karpenter's Deployment, without an image.
func Deployment() (*appsv1.Deployment, error) {
	return manifest.Decode(deployment, &appsv1.Deployment{})
}

// PodDisruptionBudget returns the budget that keeps one replica while management nodes are drained.
func PodDisruptionBudget() (*policyv1.PodDisruptionBudget, error) {
	return manifest.Decode(podDisruptionBudget, &policyv1.PodDisruptionBudget{})
}

// NetworkPolicy returns who may connect to Karpenter and where to it may, without the port of a cluster's own API server.
func NetworkPolicy() (*networkingv1.NetworkPolicy, error) {
	return manifest.Decode(networkPolicy, &networkingv1.NetworkPolicy{})
}

// PodMonitor returns the object that has Prometheus scrape Karpenter. Its kind isn't served everywhere.
func PodMonitor() (*unstructured.Unstructured, error) {
	return manifest.Decode(podMonitor, &unstructured.Unstructured{})
}
