// SPDX-License-Identifier: Apache-2.0

// Package api is a module of its own, so that a program which reads or writes AutoNode's objects needs few others:
//
//	go get github.com/autonode-io/autonode/api
//
//	import "github.com/autonode-io/autonode/api/v1beta1"            // HostedCluster, ControlPlaneComponent
//	import "github.com/autonode-io/autonode/api/v1alpha1"           // CapacityAccount, CapacityLease
//	import "github.com/autonode-io/autonode/api/karpenter/v1alpha1" // ClusterAPINodeClass, InstanceTypeCatalog, labels and annotations
//
// Each has an AddToScheme. Their numbers, quantities, times and durations are types of package scalar, whose decoding never fails. Most of
// the module's indirect requirements are those of Karpenter's conditions (operatorpkg), which its kinds have to have.
package api
