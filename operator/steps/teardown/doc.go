// SPDX-License-Identifier: Apache-2.0

// Package teardown turns AutoNode off for a hosted cluster, and cleans up when a HostedCluster is deleted.
//
// The order makes it safe, and every step can be repeated after a crash:
//
//  1. Node classes are marked as draining, so that Karpenter launches nothing for the pods that it evicts.
//  2. NodeClaims are deleted. Karpenter, which still runs, drains their nodes and removes their Machines.
//  3. Machines that are left without a NodeClaim are deleted in the management cluster.
//  4. The default node class, the ControlPlaneComponent with everything that it owns, and Karpenter's identity in the guest are deleted.
//  5. When the HostedCluster is deleted, the CustomResourceDefinitions that the operator created are deleted too, and with them the
//     guest admin's objects of these kinds.
//
// spec.nodeDrain sets a deadline for both, which counts from the drain's start in status.autoNode: nothing that a guest does moves it.
// Until then PodDisruptionBudgets hold. After it, by policy, either pods are terminated regardless of budgets, or nothing is forced and a
// condition names the drain's blocker. If Karpenter still doesn't finish after a forced drain, the operator stops it, deletes the Machines
// through the management cluster, and records that and the guest's leftovers in a ConfigMap.
//
// A deletion of the CustomResourceDefinition deletes all HostedClusters, mostly by accident. It starts no drain before
// it is confirmed: see unconfirmed.
//
// The operator abandons an unreachable guest only when its HostedCluster is deleted, and only if the guest hasn't answered
// this operator for some time before the deadline. While AutoNode is merely turned off, the operator waits for the guest.
package teardown
