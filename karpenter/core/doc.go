// SPDX-License-Identifier: Apache-2.0

// Package core holds everything that alters or wraps Karpenter core, and nothing else. Its subpackages import only
// the API packages of this repository. Each package comment names the gap in Karpenter core that the package closes,
// and the page in docs/upstream that describes the upstream fix.
package core
