// SPDX-License-Identifier: Apache-2.0

// Package explain answers why a pod gets no node and why a node stays. It runs Karpenter core's own scheduler and disruption methods
// on a snapshot of a guest. Nothing here can write to a cluster: the snapshot has no connection.
package explain
