// SPDX-License-Identifier: Apache-2.0

// Package v1beta1 is the API of the world's hosting platform stand-in: a control plane that runs elsewhere, as Cluster
// API's v1beta2 control plane contract describes it. The types and CRD are here; the world reconciles them.
//
// +kubebuilder:object:generate=true
// +groupName=controlplane.cluster.x-k8s.io
package v1beta1
