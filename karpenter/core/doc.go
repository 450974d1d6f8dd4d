// SPDX-License-Identifier: Apache-2.0

// Package core holds everything that alters or wraps Karpenter core, and nothing else: karpenter/core.go puts it together. Its subpackages
// import only the API packages of this repository. Comments name the gaps in Karpenter core that the code closes, and the pages in
// docs/internals/upstream that describe the upstream fixes.
package core
