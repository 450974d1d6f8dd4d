// SPDX-License-Identifier: Apache-2.0

// Command autonode-dev runs the local world and what plays in it: the demo, Karpenter's own suite and the benchmarks. Users install
// autonode instead.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{
		Use:           "autonode-dev",
		Short:         "Run AutoNode's local world, demo, conformance suite and benchmarks",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newBenchOperatorCommand(), newConformanceCommand(), newDemoCommand(), newWorldCommand())
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
