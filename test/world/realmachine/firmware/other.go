// SPDX-License-Identifier: Apache-2.0

//go:build !linux

// Program firmware is the first process of a real machine, on Linux.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "real machines need Linux")
	os.Exit(1)
}
