// SPDX-License-Identifier: Apache-2.0

// Package cloudprovider is what Karpenter core calls. It decides what a NodeClaim becomes, and asks the providers for
// everything else: package machine makes the Machine. It imports no controller.
package cloudprovider
