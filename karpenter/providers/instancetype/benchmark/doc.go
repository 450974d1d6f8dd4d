// SPDX-License-Identifier: Apache-2.0

// Package benchmark compares instance types with those of Karpenter's kwok provider. The labels of that provider are added to Karpenter core's sets
// where they are linked, so nothing else is tested here.
package benchmark
