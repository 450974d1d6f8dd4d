// SPDX-License-Identifier: Apache-2.0

// Package cli is AutoNode's command line, which is a plugin of kubectl, too. It has a folder for each command.
package cli

import (
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/autonode-io/autonode/cli/adopt"
	"github.com/autonode-io/autonode/cli/catalog"
	"github.com/autonode-io/autonode/cli/check"
	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/cli/describe"
	"github.com/autonode-io/autonode/cli/dump"
	"github.com/autonode-io/autonode/cli/history"
	"github.com/autonode-io/autonode/cli/hostedcluster"
	"github.com/autonode-io/autonode/cli/install"
	"github.com/autonode-io/autonode/cli/migrate"
	"github.com/autonode-io/autonode/cli/nodes"
	"github.com/autonode-io/autonode/cli/offerings"
	"github.com/autonode-io/autonode/cli/release"
	"github.com/autonode-io/autonode/cli/sleep"
	"github.com/autonode-io/autonode/cli/templates"
	"github.com/autonode-io/autonode/cli/why"
	"github.com/autonode-io/autonode/cmd/about"
	"github.com/autonode-io/autonode/fleet/cli/cost"
)

// plugin starts the names of kubectl's plugins: it runs kubectl-autonode for `kubectl autonode`.
const plugin = "kubectl-"

// NewCommand returns the whole command line. path is the program's, and usage and examples show its name. version and operatorImage are the
// program's stamps, empty in a build for development. operator checks what is installed.
func NewCommand(path, version, operatorImage string, operator install.Operator) *cobra.Command {
	name := strings.TrimSuffix(filepath.Base(path), ".exe")
	root := command.Root(&cobra.Command{
		Use:   name,
		Short: "AutoNode's command-line tool",
		Long: `AutoNode's command-line tool installs AutoNode and turns it on for Clusters, shows nodes and their cost, explains pending pods, and
creates release payloads and catalogs.

Installed as kubectl-autonode it is a plugin of kubectl: kubectl autonode.`,
	})
	shown := name
	if rest, ok := strings.CutPrefix(name, plugin); ok {
		shown = "kubectl " + rest
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: shown}
	}
	info := about.New("autonode", version)
	root.Version = info.String()
	root.SetVersionTemplate("{{.Version}}")
	groups := []struct {
		group    cobra.Group
		commands []*cobra.Command
	}{
		{cobra.Group{ID: "install", Title: "Install AutoNode and turn it on:"}, []*cobra.Command{
			install.NewCommand(operatorImage, operator), hostedcluster.NewCommand(), adopt.NewCommand(), install.NewUninstallCommand(),
		}},
		{cobra.Group{ID: "sleep", Title: "Put clusters to sleep:"}, sleep.NewCommands()},
		{cobra.Group{ID: "look", Title: "Inspect clusters:"}, []*cobra.Command{
			check.NewCommand(),
			cost.NewCommand(),
			describe.NewCommand(), dump.NewCommand(info.String()), history.NewCommand(), nodes.NewCommand(), offerings.NewCommand(),
			why.NewCommand(),
		}},
		{cobra.Group{ID: "files", Title: "Create and check files:"}, []*cobra.Command{catalog.NewCommand(), migrate.NewCommand(),
			release.NewCommand(), templates.NewCommand()}},
	}
	for i := range groups {
		root.AddGroup(&groups[i].group)
		for _, cmd := range groups[i].commands {
			cmd.GroupID = groups[i].group.ID
		}
		command.Group(root, groups[i].commands...)
	}
	command.Group(root, newVersionCommand(info))
	nameExamples(root, shown)
	return root
}

// nameExamples shows the examples of a command and of those below it under the name that the program was called by.
func nameExamples(cmd *cobra.Command, name string) {
	lines := strings.Split(cmd.Example, "\n")
	for i, line := range lines {
		if arguments, ok := strings.CutPrefix(line, "  autonode "); ok {
			lines[i] = "  " + name + " " + arguments
		}
	}
	cmd.Example = strings.Join(lines, "\n")
	for _, child := range cmd.Commands() {
		nameExamples(child, name)
	}
}
