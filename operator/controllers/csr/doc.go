// SPDX-License-Identifier: Apache-2.0

// Package csr approves and denies the certificate requests of kubelets in the guests: a machine gets its own node's
// identity, once, and no other. It approves a request only if it matches a NodeClaim in the guest and that
// NodeClaim's Machine in the management cluster. It denies a request that names one of our nodes and doesn't match.
// It ignores all others, and the renewals of client certificates, which kube-controller-manager approves.
//
// The rules are in validate.go, and need no API server. docs/reference/node-identity.md describes them.
package csr
