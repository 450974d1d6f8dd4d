// SPDX-License-Identifier: Apache-2.0

// Package command is the form of this program's commands: flags fill Options, which are validated and then run, as kubectl's are.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// Streams are what a command reads and writes.
type Streams struct {
	In          io.Reader
	Out, ErrOut io.Writer
}

// Options are what a command was called with.
type Options interface {
	// Validate looks at the options alone. It connects to nothing.
	Validate() error
	Run(ctx context.Context, streams Streams) error
}

// Run validates and runs the options that a command's flags and arguments have filled.
func Run(cmd *cobra.Command, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	return nextStep(o.Run(cmd.Context(), Streams{In: cmd.InOrStdin(), Out: cmd.OutOrStdout(), ErrOut: cmd.ErrOrStderr()}))
}

// nextStep adds what to do to errors of a cluster's API server that say only what happened.
func nextStep(err error) error {
	var resolution *net.DNSError
	switch {
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%w; the cluster refuses your credentials, which may have expired: renew them, or choose another context with --context", err)
	case utilnet.IsConnectionRefused(err), errors.As(err, &resolution):
		return fmt.Errorf("%w; check the cluster with `kubectl cluster-info`, or choose another with --context or --kubeconfig", err)
	default:
		return err
	}
}

// Group makes a command of one that only has subcommands.
func Group(cmd *cobra.Command, subcommands ...*cobra.Command) *cobra.Command {
	if cmd.Args == nil {
		cmd.Args = subcommand
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(subcommands...)
	return cmd
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

// ExactlyOne wants one argument and says what it is for if it is missing.
func ExactlyOne(name, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return fmt.Errorf("%s is missing: %s; see `%s --help`", name, what, cmd.CommandPath())
		case len(args) > 1:
			return fmt.Errorf("one %s is wanted, and %q is too much", name, args[1:])
		}
		return nil
	}
}

// RequireFlags marks flags of a command as required.
func RequireFlags(cmd *cobra.Command, flags ...string) {
	for _, flag := range flags {
		if err := cmd.MarkFlagRequired(flag); err != nil {
			panic(err) // the flag is one of the command's own
		}
	}
}

// RegisterCompletion completes the values of a flag.
func RegisterCompletion(cmd *cobra.Command, flag string, values ...string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag is one of the command's own
	}
}
