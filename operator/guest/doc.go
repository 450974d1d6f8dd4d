// SPDX-License-Identifier: Apache-2.0

// Package guest keeps one connection to each guest cluster that needs one, and turns what happens in the guest into
// reconciliations of its HostedCluster.
//
// The connections are Cluster API's (clustercache): they are health-probed, closed after five failed probes in a row and made
// anew when the kubeconfig Secret changes. Only Clusters of a HostedCluster that uses AutoNode, or is getting rid of it, are connected.
//
// A guest that can't be reached is never a reason to remove anything: [Connections.Reconcile] leaves [scope.Scope.Guest] nil
// and says so in GuestReachable, whose last transition time tells how long this has lasted.
package guest
