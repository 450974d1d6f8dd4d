// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"github.com/spf13/cobra"

	"github.com/autonode-io/autonode/cli/command"
)

// FieldOwner is the manager of the fields that this program writes.
const FieldOwner = "autonode-cli"

// DryRun is a command's --dry-run.
type DryRun string

// Values of --dry-run, as kubectl has them.
const (
	DryRunNone   DryRun = "none"
	DryRunClient DryRun = "client"
	DryRunServer DryRun = "server"
)

// Add adds --dry-run.
func (d *DryRun) Add(cmd *cobra.Command) {
	*d = DryRunNone
	command.AddChoice(cmd, (*string)(d), "dry-run", "", "client writes nothing, server lets the API server try it", string(DryRunNone),
		string(DryRunClient), string(DryRunServer))
}

// Suffix follows what would be done.
func (d DryRun) Suffix() string {
	return map[DryRun]string{DryRunClient: " (dry run)", DryRunServer: " (server dry run)"}[d]
}
