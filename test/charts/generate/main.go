// SPDX-License-Identifier: Apache-2.0

// Generate writes what is generated of the Helm charts, in the repository that it runs in: make generate.
package main

import (
	"fmt"
	"os"

	"github.com/autonode-io/autonode/test/charts"
)

func main() {
	if err := charts.Generate("."); err != nil {
		fmt.Fprintln(os.Stderr, "generating the charts:", err)
		os.Exit(1)
	}
}
