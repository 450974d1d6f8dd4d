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
// Both have a deadline, which spec.nodeDrain sets and which counts from what status.autoNode holds of the drain: nothing that a guest
// does or refuses moves it. Until then PodDisruptionBudgets hold. Then either pods are terminated against them, and a Karpenter that still
// doesn't finish is given up: it is stopped, the Machines are deleted through the management cluster, and a ConfigMap says so, and what the
// guest keeps. Or, by policy, nothing is forced, and a person is told what holds the drain.
//
// A guest that can't be reached is given up only when its HostedCluster is deleted, and only when this operator has had no answer
// for a while by the deadline. While AutoNode is merely turned off the guest goes on to live, and is waited for.
package teardown
