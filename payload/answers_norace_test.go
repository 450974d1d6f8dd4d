// SPDX-License-Identifier: Apache-2.0

//go:build !race

package payload

// maxAllocated is of one pull, three attempts and the test's own registry included.
const maxAllocated = 16 << 20
