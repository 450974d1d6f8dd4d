// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/autonode-io/autonode/test/scale"
)

func newBenchOperatorCommand() *cobra.Command {
	cfg := scale.Config{}
	cmd := &cobra.Command{
		Use:   "bench-operator",
		Short: "Measure what many hosted clusters cost the operator",
		Long: `Turn AutoNode on in many hosted clusters at once and print how long that takes, what the operator requests of the API servers meanwhile
and afterwards, and how much memory it needs. It fails if the operator writes anything while there is nothing to do, or needs more memory than its budget.

The API servers are real, and shared by the guests. No pods run. Needs Linux, and to be run in AutoNode's source.`,
		Example: `  # A thousand; about a quarter of an hour on two cores
  autonode-dev bench-operator

  # Some, beside guests that hang and that are slow
  autonode-dev bench-operator --clusters 50 --silent 5 --slow 5 --steady 1m`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cfg.Operator == "" {
				self, err := os.Executable()
				if err != nil {
					return fmt.Errorf("finding this program: %w", err)
				}
				cfg.Operator = filepath.Join(filepath.Dir(self), "autonode-operator")
			}
			cfg.Out = cmd.OutOrStdout()
			log.SetLogger(logr.Discard())
			return scale.Run(cmd.Context(), cfg)
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&cfg.Clusters, "clusters", 1000, "hosted clusters that get AutoNode at once")
	flags.IntVar(&cfg.APIServers, "api-servers", 4, "API servers that the guests share")
	flags.IntVar(&cfg.Silent, "silent", 0, "more hosted clusters, whose guests accept connections and never answer")
	flags.IntVar(&cfg.Slow, "slow", 0, "more hosted clusters, whose guests take two seconds for each answer")
	flags.IntVar(&cfg.HostileNodes, "hostile-nodes", 0, "Nodes of one more hosted cluster, whose admin fills its guest with the largest objects and changes them without a pause; 0 for none")
	flags.DurationVar(&cfg.Steady, "steady", 5*time.Minute, "how long to count requests while there is nothing to do")
	flags.Float64Var(&cfg.Budget, "budget", 1.5, "MiB of memory that a hosted cluster may cost the operator, with 50 or more of them; 0 for no limit")
	flags.DurationVar(&cfg.Timeout, "timeout", 20*time.Minute, "how long to wait until AutoNode is on everywhere")
	flags.StringVar(&cfg.Operator, "operator", "", "the operator's program; default the autonode-operator beside this program")
	flags.StringVar(&cfg.Definitions, "definitions", filepath.Join("manifests", "crds"), "folder of the operator's CRDs")
	flags.StringVar(&cfg.Dir, "dir", filepath.Join("bin", "bench-operator"), "folder for logs, audit logs and a profile of the operator's memory; what is there is removed")
	return cmd
}
