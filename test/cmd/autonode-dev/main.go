// SPDX-License-Identifier: Apache-2.0

// Command autonode-dev runs the local world and what plays in it: the demo, Karpenter's own suite and the benchmarks. It makes
// releases, too. Users install autonode instead.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/autonode-io/autonode/cmd/about"
	"github.com/autonode-io/autonode/internal/message"
	localworld "github.com/autonode-io/autonode/test/world"
)

// version is stamped when the program is built.
var version string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{
		Use:           "autonode-dev",
		Short:         "Run AutoNode's local world, demo, conformance suite and benchmarks, and make its releases",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       about.New("autonode-dev", version).String(),
	}
	root.SetVersionTemplate("{{.Version}}")
	root.AddCommand(newBenchOperatorCommand(), newConformanceCommand(), newDemoCommand(), newReleaseCommand(), newWorldCommand())
	if err := root.ExecuteContext(ctx); err != nil {
		if errors.Is(err, localworld.ErrNoWorld) {
			err = fmt.Errorf("%w\nstart one with `autonode-dev world up`, or name the folder of another with --dir", err)
		}
		fmt.Fprintln(&message.Writer{To: os.Stderr}, "error:", err)
		os.Exit(1)
	}
}
