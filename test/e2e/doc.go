// SPDX-License-Identifier: Apache-2.0

// Package e2e has the end-to-end tests, one per file, against a local world: real API servers, real Cluster API, real Karpenter, our programs from
// real images. Most tests share one world with several guests: a test acquires a guest, with AutoNode on or as it is, and leaves no node behind.
package e2e
