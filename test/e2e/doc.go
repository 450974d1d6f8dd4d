// SPDX-License-Identifier: Apache-2.0

// Package e2e tells the stories that have to hold, one per file, against a local world: real API servers, real Cluster
// API, real Karpenter, our programs from real images. One world with several guests serves all stories; a story takes a
// guest with AutoNode off or on as it needs it, and leaves no node behind.
package e2e
