// SPDX-License-Identifier: Apache-2.0

// Package benchmark compares instance types with those of Karpenter's kwok provider. That provider adds labels to Karpenter core's sets when it is
// linked, so nothing else is tested here.
package benchmark
