// SPDX-License-Identifier: Apache-2.0

// Package wiring tests that the programs run everything that there is: it starts the whole karpenter-clusterapi against an API server, and
// compares what both programs' run.go list with the table in docs/internals/testing.md. It links Karpenter.
package wiring
