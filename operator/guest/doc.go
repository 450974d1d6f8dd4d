// SPDX-License-Identifier: Apache-2.0

// Package guest keeps one connection to each guest cluster that needs one, and reconciles the HostedCluster when
// objects in its guest change.
//
// Package connection makes, probes and closes the connections, package store has their watches. There are connections only to
// Clusters of a HostedCluster that uses AutoNode or is removing it. A changed kubeconfig Secret replaces its connection.
//
// The operator removes nothing because a guest is unreachable: [Connections.Reconcile] leaves [scope.Scope.Guest] nil
// and sets GuestReachable, whose last transition time is when that began.
package guest
