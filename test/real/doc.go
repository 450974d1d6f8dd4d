// SPDX-License-Identifier: Apache-2.0

// Package real has the test of real machines: a world whose cloud boots containerd, a kubelet and containers instead of kwok nodes. `make
// e2e-real` runs it. It needs Linux, root and some programs, so that it is no part of `make test`; what is missing fails it.
package real
