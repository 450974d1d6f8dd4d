// SPDX-License-Identifier: Apache-2.0

// Package teardown turns AutoNode off for a hosted cluster, and cleans up when a HostedCluster is deleted.
//
// The order is what makes it safe, and every part of it can be repeated after a crash:
//
//  1. Node classes are marked as draining, so that Karpenter launches nothing for the pods that it evicts.
//  2. NodeClaims are deleted. Karpenter, which still runs, drains their nodes and removes their Machines.
//  3. Machines that are left without a NodeClaim are deleted in the management cluster.
//  4. The default node class, the ControlPlaneComponent with everything that it owns, and Karpenter's identity in the guest go.
//  5. When the HostedCluster is deleted, the CustomResourceDefinitions that the operator created go too, and with them what the
//     guest's admin defined by them.
//
// Turning AutoNode off waits as long as it takes. Deleting a HostedCluster has a deadline, counted from its deletion timestamp:
// then pods are terminated against their PodDisruptionBudgets. A guest that has been unreachable for a while by then, or a Karpenter
// that still doesn't finish, is given up: the Machines are deleted through the management cluster, and a ConfigMap says so.
package teardown
