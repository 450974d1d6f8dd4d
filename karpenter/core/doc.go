// SPDX-License-Identifier: Apache-2.0

// Package core holds everything that alters or wraps Karpenter core, and nothing else. A package below it imports nothing of
// ours but the API, and its comment names the gap in Karpenter core that it closes and the page in docs/upstream that
// would make it unnecessary.
package core
