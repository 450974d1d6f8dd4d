// SPDX-License-Identifier: Apache-2.0

// Command autonode turns AutoNode on, makes release payloads and catalogs, and shows nodes and what a node class launches. It is a plugin of
// kubectl, too.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/autonode-io/autonode/api/message"
)

// version is stamped when the program is built.
var version string

// plugin starts the names of kubectl's plugins: it runs kubectl-autonode for `kubectl autonode`.
const plugin = "kubectl-"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// client-go logs what a cluster's API server answers.
	klog.SetLogger(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&message.Writer{To: os.Stderr}))))
	if err := newCommand(os.Args[0]).ExecuteContext(ctx); err != nil {
		printError(os.Stderr, err)
		os.Exit(1)
	}
}

// printError indents further lines of an error, so that none passes for another one's.
func printError(to io.Writer, err error) {
	fmt.Fprintln(to, "error:", strings.ReplaceAll(message.Visible(err.Error()), "\n", "\n  "))
}

// newCommand returns the whole program. path is what it was called by, and its usage and examples show that name.
func newCommand(path string) *cobra.Command {
	name := strings.TrimSuffix(filepath.Base(path), ".exe")
	root := &cobra.Command{
		Use:   name,
		Short: "AutoNode's command-line tool",
		Long: `AutoNode's command-line tool makes release payloads and shows what a node class launches.

Installed as kubectl-autonode it is a plugin of kubectl: kubectl autonode.`,
		Args:          subcommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	shown := name
	if command, ok := strings.CutPrefix(name, plugin); ok {
		shown = "kubectl " + command
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: shown}
	}
	root.PersistentPreRun = func(cmd *cobra.Command, _ []string) {
		cmd.SetOut(&message.Writer{To: cmd.OutOrStdout()})
		cmd.SetErr(&message.Writer{To: cmd.ErrOrStderr()})
	}
	info := programInfo()
	root.Version = info.String()
	root.SetVersionTemplate("{{.Version}}")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w; see `%s --help`", err, cmd.CommandPath())
	})
	root.AddCommand(newCatalogCommand(), newCostCommand(), newDumpCommand(), newHostedClusterCommand(), newInstallCommand(), newNodesCommand(),
		newReleaseCommand(), newTemplatesCommand(), newUninstallCommand(), newVersionCommand(), newWhyCommand())
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

// subcommand rejects an argument of a command that only has subcommands, and suggests those with similar names.
func subcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
		text += fmt.Sprintf("; did you mean %s?", strings.Join(similar, " or "))
	}
	return errors.New(text + fmt.Sprintf("; see `%s --help`", cmd.CommandPath()))
}
