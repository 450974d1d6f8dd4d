// SPDX-License-Identifier: Apache-2.0

// Package cloudprovider implements Karpenter core's CloudProvider. It chooses an offering for a NodeClaim; package
// machine creates the Machine. It imports no controller.
package cloudprovider
