// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the management cluster's API of capacity that hosted clusters share: CapacityAccount, which a
// platform team writes, and CapacityLease, by which the operator grants one cluster its part. The rules by which the
// grants are safe are in package division of the folder fleet.
//
// +kubebuilder:object:generate=true
// +groupName=autonode.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the API group of this package, the same as that of HostedCluster.
const Group = "autonode.io"

var (
	// GroupVersion is the API group and version of this package.
	GroupVersion = schema.GroupVersion{Group: Group, Version: "v1alpha1"}

	schemeBuilder = runtime.NewSchemeBuilder(func(s *runtime.Scheme) error {
		s.AddKnownTypes(GroupVersion,
			&CapacityAccount{}, &CapacityAccountList{},
			&CapacityLease{}, &CapacityLeaseList{},
		)
		metav1.AddToGroupVersion(s, GroupVersion)
		return nil
	})

	// AddToScheme registers this package's types.
	AddToScheme = schemeBuilder.AddToScheme
)
