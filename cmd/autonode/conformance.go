// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/autonode-io/autonode/test/conformance"
)

func newConformanceCommand() *cobra.Command {
	var provider, suite string
	var cfg conformance.Config
	var scale []int
	providers := []string{conformance.ClusterAPI, conformance.Kwok}
	cmd := &cobra.Command{
		Use:   "conformance",
		Short: "Run Karpenter's regression suite against AutoNode's provider",
		Long: `Run Karpenter's own regression suite, unchanged, in a world of its own: against AutoNode's provider and against
Karpenter's kwok provider, and print both results side by side. It fails if a spec fails that the kwok provider passes.

The last results of each provider are kept, so that running one shows the other's too.`,
		Example: `  # Both providers, all specs; about half an hour on two cores
  autonode conformance

  # Some specs, with one provider
  autonode conformance --provider clusterapi --focus 'Drift Budgets'

  # How long 3, 50 and 150 pods take that need a node each
  autonode conformance --scale 3,50,150`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.Providers = providers
			if provider != "" {
				if !slices.Contains(providers, provider) {
					return fmt.Errorf("--provider %s: there are %v", provider, providers)
				}
				cfg.Providers = []string{provider}
			}
			suites := []string{conformance.Regression, conformance.DRA}
			if !slices.Contains(suites, suite) {
				return fmt.Errorf("--suite %s: there are %v", suite, suites)
			}
			cfg.Suites = []string{suite}
			if cfg.Karpenter == "" {
				self, err := os.Executable()
				if err != nil {
					return fmt.Errorf("finding this program: %w", err)
				}
				cfg.Karpenter = filepath.Join(filepath.Dir(self), "karpenter-clusterapi")
			}
			cfg.Out = cmd.OutOrStdout()
			if len(scale) > 0 {
				return conformance.Scale(cmd.Context(), conformance.ScaleConfig{Sizes: scale, Karpenter: cfg.Karpenter, Out: cfg.Out})
			}
			return conformance.Run(cmd.Context(), cfg)
		},
	}
	cmd.Flags().StringVar(&provider, "provider", "", "clusterapi or kwok; both if empty")
	cmd.Flags().IntSliceVar(&scale, "scale", nil, "instead of a suite, measure how long so many pods take that need a node each, with both providers")
	cmd.Flags().StringVar(&suite, "suite", conformance.Regression, "regression or dra")
	cmd.Flags().StringVar(&cfg.Focus, "focus", "", "regular expression that chooses specs by their text")
	cmd.Flags().IntVar(&cfg.Guests, "guests", 5, "guest clusters that each provider's specs are spread over")
	cmd.Flags().StringVar(&cfg.Results, "results", filepath.Join("bin", "conformance"), "folder of the last results and of the logs")
	cmd.Flags().StringVar(&cfg.Karpenter, "karpenter", "", "AutoNode's provider; default the karpenter-clusterapi beside this program")
	return cmd
}
