// SPDX-License-Identifier: Apache-2.0

// Package guest keeps one connection to each guest cluster that needs one, and reconciles the HostedCluster when
// objects in its guest change.
//
// The connections are Cluster API's (clustercache). clustercache probes them, closes them after five failed probes in a
// row, and replaces them when the kubeconfig Secret changes. It connects only to Clusters of a HostedCluster that uses
// AutoNode or is removing it. What the steps read comes from the watches of package store.
//
// The operator removes nothing because a guest is unreachable: [Connections.Reconcile] leaves [scope.Scope.Guest] nil
// and sets GuestReachable, whose last transition time is when that began.
package guest
