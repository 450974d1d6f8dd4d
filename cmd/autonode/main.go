// SPDX-License-Identifier: Apache-2.0

// Command autonode makes and shows release payloads.
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
		Use:           "autonode",
		Short:         "AutoNode's command-line tool",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newReleaseCommand())
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
