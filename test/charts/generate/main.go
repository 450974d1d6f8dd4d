// SPDX-License-Identifier: Apache-2.0

// Generate writes what is generated of the Helm charts: make generate, which runs it in the folder of its module.
package main

import (
	"fmt"
	"os"

	"github.com/autonode-io/autonode/test/charts"
)

func main() {
	if err := charts.Generate(".."); err != nil {
		fmt.Fprintln(os.Stderr, "generating the charts:", err)
		os.Exit(1)
	}
}
