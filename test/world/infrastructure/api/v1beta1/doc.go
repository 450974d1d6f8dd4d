// SPDX-License-Identifier: Apache-2.0

// Package v1beta1 is the API of the world's infrastructure provider: a cloud whose machines are kwok nodes.
//
// It follows Cluster API's v1beta2 contract for InfraCluster, InfraMachine and InfraMachineTemplate, so Cluster API
// and everything built on it meet here what they meet in a real provider.
//
// # Faults
//
// Annotations set the faults of a cloud: on one KwokMachine, on a KwokMachineTemplate (for
// every machine cloned from it) or on a KwokCluster (for all its machines). The most specific object that carries an
// annotation wins, so `no-capacity: "false"` on a machine exempts it. Annotations are read all the time: adding
// one to a running machine makes the fault happen, removing it ends the fault where that is possible. They are
// annotations and not fields because a fault is no part of a machine's spec: editing a template's spec would make
// every node cloned from it drift.
//
// A value that can't be read is reported in the condition FaultsUnderstood of the machine, and that fault is ignored.
//
// +kubebuilder:object:generate=true
// +groupName=infrastructure.cluster.x-k8s.io
package v1beta1
