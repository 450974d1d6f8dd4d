// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/autonode-io/autonode/cmd/about"
)

func programInfo() about.Info { return about.Of("autonode", version) }

// newVersionCommand returns `autonode version`.
func newVersionCommand() *cobra.Command {
	var output string
	outputs := []string{"text", "json", "yaml"}
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print this program's version and what it was built with",
		Example: `  autonode version

  # For a script
  autonode version -o json | jq -r .version`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			info, out := programInfo(), cmd.OutOrStdout()
			switch output {
			case "text":
				_, err := fmt.Fprint(out, info)
				return err
			case "json", "yaml":
				return encode(out, output, info)
			}
			return fmt.Errorf("--output: %q is none of %s", output, strings.Join(outputs, ", "))
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "output format: "+strings.Join(outputs, ", "))
	registerCompletion(cmd, "output", slices.Clone(outputs)...)
	return cmd
}
