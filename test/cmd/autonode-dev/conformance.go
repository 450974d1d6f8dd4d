// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/autonode-io/autonode/test/conformance"
	localworld "github.com/autonode-io/autonode/test/world"
)

func newConformanceCommand() *cobra.Command {
	var provider string
	var cfg conformance.Config
	var sizes []string
	var scale conformance.ScaleConfig
	var budget, busy bool
	cmd := &cobra.Command{
		Use:   "conformance",
		Short: "Run Karpenter's own suites against AutoNode's provider",
		Long: `Run Karpenter's own regression and disruption suites, unchanged, in a world of its own: against AutoNode's provider and against
Karpenter's kwok provider, and print both results side by side. AutoNode's operator installs AutoNode's provider from a release payload, and the suite
has the rights of the guest's admin. It fails if a spec fails, unless it failed with the kwok provider in the same run, or the reason is known.

The last results of each provider are kept, so that running one shows the other's too.`,
		Example: `  # Both providers, all specs; about half an hour on two cores
  autonode-dev conformance

  # Some specs, with one provider
  autonode-dev conformance --provider clusterapi --focus 'Drift Budgets'

  # AutoNode's provider without the operator and its admission policies
  autonode-dev conformance --provider bare

  # How long 3, 50 and 150 pods take that need a node each, and what they cost
  autonode-dev conformance --scale 3,50,150 --json results.json

  # 1,000 pods on 157 nodes
  autonode-dev conformance --scale 1000/157

  # 50, beside kwok nodes that join at once, and beside some that join a second later
  autonode-dev conformance --scale 50 --kwok-delay 0s,1s

  # 50, in a guest that has a node
  autonode-dev conformance --scale 50 --residents 1

  # 100, with AutoNode's operator, and without the comparison
  autonode-dev conformance --scale 100 --with-operator --provider clusterapi`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if cfg.Providers, err = chooseProviders(provider, len(sizes) > 0); err != nil {
				return err
			}
			if cfg.Guests < 1 || cfg.Guests > conformance.MaxGuests {
				return fmt.Errorf("--guests %d: it has to be from 1 to %d", cfg.Guests, conformance.MaxGuests)
			}
			suites := []string{conformance.Regression, conformance.Disruption, conformance.DRA}
			for _, suite := range cfg.Suites {
				if !slices.Contains(suites, suite) {
					return fmt.Errorf("--suite %s: there are %v", suite, suites)
				}
			}
			if cfg.Karpenter == "" {
				self, err := os.Executable()
				if err != nil {
					return fmt.Errorf("finding this program: %w", err)
				}
				cfg.Karpenter = filepath.Join(filepath.Dir(self), "karpenter-clusterapi")
			}
			cfg.Out = cmd.OutOrStdout()
			if budget {
				scale.Out = cfg.Out
				return conformance.Budget(cmd.Context(), scale)
			}
			if busy {
				scale.Karpenter, scale.Out = cfg.Karpenter, cfg.Out
				return conformance.Busy(cmd.Context(), scale)
			}
			if len(sizes) > 0 {
				var err error
				if scale.Sizes, err = readSizes(sizes); err != nil {
					return err
				}
				scale.Providers, scale.Karpenter, scale.Out = cfg.Providers, cfg.Karpenter, cfg.Out
				_, err = conformance.Scale(cmd.Context(), scale)
				return err
			}
			for _, name := range []string{"json", "with-operator", "cluster-api", "kwok-delay", "residents", "profiles"} {
				if cmd.Flags().Changed(name) {
					return fmt.Errorf("--%s goes with measurements only: --scale, and --json with --budget and --busy too", name)
				}
			}
			return conformance.Run(cmd.Context(), cfg)
		},
	}
	cmd.Flags().StringVar(&provider, "provider", "", "clusterapi, kwok, or bare: AutoNode's provider without the operator; clusterapi and kwok if empty; with --scale clusterapi, machinedeployment, kwok, or all if empty")
	cmd.Flags().StringSliceVar(&sizes, "scale", nil, "instead of a suite, measure how long so many pods take that need a node each, or so many pods on so many nodes, with both providers, and a MachineDeployment of as many nodes")
	cmd.Flags().BoolVar(&budget, "budget", false, fmt.Sprintf("instead of a suite, count the requests and the CPU time of %d nodes, and fail when one costs too much", conformance.BudgetPods))
	cmd.Flags().BoolVar(&busy, "busy", false, fmt.Sprintf("instead of a suite, measure %d bursts of %d nodes beside %d busy loops, and fail when a machine is lost or more are made",
		conformance.BusyBursts, conformance.BusyPods, conformance.BusyLoops))
	cmd.Flags().StringVar(&scale.JSON, "json", "", "with --scale, --budget or --busy: file for the results")
	cmd.Flags().StringVar(&scale.Profiles, "profiles", "", "with --scale: folder for profiles of Karpenter, Cluster API and the API servers: of the CPU in slices of five seconds, of the heap after each burst; they take time of their own")
	cmd.Flags().StringSliceVar(&scale.ClusterAPI, "cluster-api", []string{localworld.ClusterAPITuned},
		"with --scale: how Cluster API runs: tuned, unlimited, defaults, which is as it ships, or several, separated by a comma")
	cmd.Flags().DurationSliceVar(&scale.KwokDelays, "kwok-delay", nil,
		"with --scale: after how long the kwok provider's nodes join, or several times, separated by a comma; default at once")
	cmd.Flags().IntVar(&scale.Residents, "residents", 0, "with --scale: how many nodes the guest has before the first burst, on which no pod of a burst fits")
	cmd.Flags().BoolVar(&scale.Operator, "with-operator", false, "with --scale: let AutoNode's operator run its provider")
	cmd.Flags().StringSliceVar(&cfg.Suites, "suite", []string{conformance.Regression, conformance.Disruption}, "regression, disruption or dra, separated by a comma")
	cmd.Flags().StringVar(&cfg.Focus, "focus", "", "regular expression that chooses specs by their text")
	cmd.Flags().IntVar(&cfg.Guests, "guests", 6, "guest clusters that each provider's specs are spread over")
	cmd.Flags().StringVar(&cfg.Results, "results", filepath.Join("bin", "conformance"), "folder of the last results and of the logs")
	cmd.Flags().StringVar(&cfg.Karpenter, "karpenter", "", "AutoNode's provider; default the karpenter-clusterapi beside this program; the operator's is built from the source")
	for _, other := range []string{"suite", "focus", "guests", "results"} {
		cmd.MarkFlagsMutuallyExclusive("scale", other)
		cmd.MarkFlagsMutuallyExclusive("budget", other)
		cmd.MarkFlagsMutuallyExclusive("busy", other)
	}
	for _, other := range []string{"scale", "provider", "with-operator", "cluster-api", "kwok-delay", "residents", "karpenter", "profiles"} {
		cmd.MarkFlagsMutuallyExclusive("budget", other)
		cmd.MarkFlagsMutuallyExclusive("busy", other)
	}
	cmd.MarkFlagsMutuallyExclusive("budget", "busy")
	return cmd
}

// chooseProviders reads --provider. A measurement states by --with-operator who runs AutoNode's provider.
func chooseProviders(named string, measures bool) ([]string, error) {
	byDefault := []string{conformance.ClusterAPI, conformance.Kwok}
	all := append(slices.Clone(byDefault), conformance.Bare)
	if measures {
		all = []string{conformance.ClusterAPI, conformance.MachineDeployment, conformance.Kwok}
		byDefault = all
	}
	switch {
	case named == "":
		return byDefault, nil
	case !slices.Contains(all, named):
		return nil, fmt.Errorf("--provider %s: there are %v", named, all)
	default:
		return []string{named}, nil
	}
}

// readSizes reads the sizes that --scale names.
func readSizes(texts []string) ([]conformance.Size, error) {
	var sizes []conformance.Size
	for _, text := range texts {
		size, err := conformance.ReadSize(text)
		if err != nil {
			return nil, fmt.Errorf("--scale: %w", err)
		}
		if slices.Contains(sizes, size) {
			return nil, fmt.Errorf("--scale %s: the size is named twice", text)
		}
		sizes = append(sizes, size)
	}
	return sizes, nil
}
