// SPDX-License-Identifier: Apache-2.0

// Package wiring tests that the programs run everything that there is: it starts the whole karpenter-clusterapi against an API server, and
// looks for a mutant of each entry of both programs' run.go. It links Karpenter.
package wiring
