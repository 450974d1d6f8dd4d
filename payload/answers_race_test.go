// SPDX-License-Identifier: Apache-2.0

//go:build race

package payload

// maxAllocated is of one pull, three attempts and the test's own registry included. With the race detector, pools forget at random what they
// were given.
const maxAllocated = 32 << 20
