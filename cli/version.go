// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"

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
	printer.AddFlag(cmd, &o.output)
	return cmd
}

// Run implements command.Options.
func (o *versionOptions) Run(_ context.Context, streams command.Streams) error {
	return printer.Print(streams.Out, o.output, o.info, func(to io.Writer) error {
		_, err := fmt.Fprint(to, o.info)
		return err
	}, o.info.Program+" "+o.info.Version)
}
