// SPDX-License-Identifier: Apache-2.0

// Package methods alters the methods by which Karpenter core chooses the nodes that it disrupts.
package methods
