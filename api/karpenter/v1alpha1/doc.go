// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the API of Karpenter's Cluster API provider: ClusterAPINodeClass and NodeRecord of the guest cluster;
// InstanceTypeCatalog of the management cluster; and the keys of the labels and annotations that the provider uses.
//
// +kubebuilder:object:generate=true
// +groupName=karpenter.cluster.x-k8s.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the API group of this package, and the prefix of the provider's labels and annotations.
const Group = "karpenter.cluster.x-k8s.io"

var (
	// GroupVersion is the API group and version of this package.
	GroupVersion = schema.GroupVersion{Group: Group, Version: "v1alpha1"}

	schemeBuilder = runtime.NewSchemeBuilder(func(s *runtime.Scheme) error {
		s.AddKnownTypes(GroupVersion, &ClusterAPINodeClass{}, &ClusterAPINodeClassList{}, &InstanceTypeCatalog{}, &InstanceTypeCatalogList{},
			&NodeRecord{}, &NodeRecordList{})
		metav1.AddToGroupVersion(s, GroupVersion)
		return nil
	})

	// AddToScheme registers this package's types.
	AddToScheme = schemeBuilder.AddToScheme
)
