// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/cli/printer"
	"github.com/autonode-io/autonode/cmd/about"
)

// versionOptions are those of `autonode version`.
type versionOptions struct {
	info   about.Info
	output string
}

func newVersionCommand(info about.Info) *cobra.Command {
	o := versionOptions{info: info}
	cmd := command.New(&cobra.Command{
		Use:   "version",
		Short: "Print the versions of this program and its libraries",
		Example: `  autonode version

  # For a script
  autonode version -o json | jq -r .version`,
	}, &o)
	printer.AddFlag(cmd, &o.output, "output format", "text", "json", "yaml")
	return cmd
}

// Run implements command.Options.
func (o *versionOptions) Run(_ context.Context, streams command.Streams) error {
	if o.output != "text" {
		return printer.Encode(streams.Out, o.output, o.info)
	}
	_, err := fmt.Fprint(streams.Out, o.info)
	return err
}
