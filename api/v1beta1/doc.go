// SPDX-License-Identifier: Apache-2.0

// Package v1beta1 is the management cluster's API of AutoNode: HostedCluster, which a platform team writes, and
// ControlPlaneComponent, which reports the operator's workload for it.
//
// +kubebuilder:object:generate=true
// +groupName=autonode.io
package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the API group of this package. Labels, annotations and finalizers of the operator use it as their prefix.
const Group = "autonode.io"

var (
	// GroupVersion is the API group and version of this package.
	GroupVersion = schema.GroupVersion{Group: Group, Version: "v1beta1"}

	schemeBuilder = runtime.NewSchemeBuilder(func(s *runtime.Scheme) error {
		s.AddKnownTypes(GroupVersion,
			&HostedCluster{}, &HostedClusterList{},
			&ControlPlaneComponent{}, &ControlPlaneComponentList{},
		)
		metav1.AddToGroupVersion(s, GroupVersion)
		return nil
	})

	// AddToScheme registers this package's types.
	AddToScheme = schemeBuilder.AddToScheme
)
