// SPDX-License-Identifier: Apache-2.0

// Package csr decides on the certificate requests of kubelets in the guests: a machine gets the identity of its own node, once, and
// no other. A request is approved only if it matches a NodeClaim in the guest and the Machine that was made for it in the management
// cluster. One that names a node of ours and doesn't match is denied. All others are left alone: they are somebody else's.
//
// The rules are in judge.go, and need no API server. docs/node-identity.md tells of them.
package csr
