// SPDX-License-Identifier: Apache-2.0

// Package benchmark compares instance types with those of Karpenter's kwok provider, by that provider's own code. Where that is linked, its
// labels are in Karpenter core's sets, so nothing else is measured here.
package benchmark
