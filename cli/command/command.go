// SPDX-License-Identifier: Apache-2.0

// Package command is the form of this program's commands: flags fill Options, which are validated and then run, as kubectl's are.
package command

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/autonode-io/autonode/internal/message"
)

// Streams are what a command reads and writes.
type Streams struct {
	In          io.Reader
	Out, ErrOut io.Writer
	// Raw is Out for what isn't text: Out shows control characters as text.
	Raw io.Writer
}

// Root sets up the root of a command line: what it prints shows control characters as text, and the error of a flag tells where its use is
// explained.
func Root(root *cobra.Command) *cobra.Command {
	root.SilenceUsage, root.SilenceErrors = true, true
	root.PersistentPreRun = func(cmd *cobra.Command, _ []string) {
		cmd.SetOut(&message.Writer{To: cmd.OutOrStdout()})
		cmd.SetErr(&message.Writer{To: cmd.ErrOrStderr()})
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return flagError(cmd.CommandPath(), err) })
	return root
}

// Options are what a command was called with.
type Options interface {
	Run(ctx context.Context, streams Streams) error
}

// New completes a command that runs options, which its flags and arguments fill. Without cmd.Args it takes flags only.
func New(cmd *cobra.Command, o Options) *cobra.Command {
	if cmd.Args == nil {
		cmd.Args, cmd.ValidArgsFunction = arguments("", nil), cobra.NoFileCompletions
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return run(cmd, o) }
	return cmd
}

func run(cmd *cobra.Command, o Options) error {
	// Validate connects to nothing.
	if v, ok := o.(interface{ Validate() error }); ok {
		if err := v.Validate(); err != nil {
			return plain(err)
		}
	}
	raw := cmd.OutOrStdout()
	if visible, ok := raw.(*message.Writer); ok {
		raw = visible.To
	}
	return plain(nextStep(o.Run(cmd.Context(), Streams{In: cmd.InOrStdin(), Out: cmd.OutOrStdout(), ErrOut: cmd.ErrOrStderr(), Raw: raw})))
}

// nextStep adds what to do to errors of a cluster's API server that say only what happened.
func nextStep(err error) error {
	const another = "choose another cluster with --context or --kubeconfig"
	var (
		resolution *net.DNSError
		timeout    net.Error
		authority  x509.UnknownAuthorityError
		hostname   x509.HostnameError
		invalid    x509.CertificateInvalidError
	)
	switch {
	case err == nil:
		return nil
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%w; the cluster refuses your credentials, which may have expired: renew them, or choose another context with "+
			"--context", err)
	case strings.Contains(err.Error(), "getting credentials: "):
		return fmt.Errorf("%w; the program that the kubeconfig runs for credentials failed: log in with it, or choose another context with "+
			"--context", err)
	case apierrors.IsForbidden(err) && !strings.Contains(err.Error(), "; ask for "): // a command may say for which right
		return fmt.Errorf("%w; ask for that permission, or choose another user with --context", err)
	case errors.As(err, &authority), errors.As(err, &hostname), errors.As(err, &invalid):
		return fmt.Errorf("%w; correct certificate-authority-data or tls-server-name of the kubeconfig, or %s", err, another)
	case utilnet.IsConnectionRefused(err), errors.As(err, &resolution), errors.As(err, &timeout) && timeout.Timeout(),
		errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return fmt.Errorf("%w; check the cluster with `kubectl cluster-info`, or %s", err, another)
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

// arguments fills values with arguments, of which those with names are required. what explains them if one is missing.
func arguments(what string, names []string, values ...*string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		for i, name := range names {
			if i >= len(args) || args[i] == "" {
				return missing(cmd, name, what)
			}
		}
		if len(args) > len(values) {
			return fmt.Errorf("unexpected argument %q; see `%s --help`", args[len(values)], cmd.CommandPath())
		}
		for i, arg := range args {
			*values[i] = arg
		}
		return nil
	}
}

// ExactlyOne requires one argument, and explains what it is for if it is missing.
func ExactlyOne(value *string, name, what string) cobra.PositionalArgs {
	return arguments(what, []string{name}, value)
}

// ExactlyTwo requires two arguments, and explains what both are for if one is missing.
func ExactlyTwo(values *[2]string, first, second, what string) cobra.PositionalArgs {
	return arguments(what, []string{first, second}, &values[0], &values[1])
}

// AtMostOne requires one argument or none.
func AtMostOne(value *string) cobra.PositionalArgs { return arguments("", nil, value) }

func missing(cmd *cobra.Command, name, what string) error {
	return fmt.Errorf("%s is missing: %s; see `%s --help`", name, what, cmd.CommandPath())
}

// AtLeastOne requires one argument or more, and explains what they are for if there is none.
func AtLeastOne(values *[]string, name, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if *values = args; len(args) == 0 {
			return missing(cmd, name, what)
		}
		return nil
	}
}

// RequireFlags makes flags of a command required, and explains what one is for if it is missing.
func RequireFlags(cmd *cobra.Command, flags ...string) {
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for _, name := range flags {
			if flag := cmd.Flags().Lookup(name); !flag.Changed {
				return missing(cmd, "--"+name, strings.TrimSuffix(flag.Usage, " (required)"))
			}
		}
		return run(cmd, args)
	}
}

// choice is a flag that takes one of a few values.
type choice struct {
	flag   string
	value  *string
	values []string
}

// choiceError reports another value.
type choiceError struct{ error }

func (c choice) String() string { return *c.value }
func (choice) Type() string     { return "string" }

// Set implements pflag.Value.
func (c choice) Set(value string) error {
	switch {
	case slices.Contains(c.values, value):
		*c.value = value
		return nil
	case c.flag == "output": // in kubectl's words
		return choiceError{fmt.Errorf("unable to match a printer suitable for the output format %q, allowed formats are: %s", value,
			strings.Join(c.values, ","))}
	}
	return choiceError{fmt.Errorf("--%s %q: must be one of %s", c.flag, value, strings.Join(c.values, ", "))}
}

// AddChoice adds a flag that takes one of a few values, and completes them.
func AddChoice(cmd *cobra.Command, value *string, flag, shorthand, usage string, values ...string) {
	cmd.Flags().VarP(choice{flag, value, values}, flag, shorthand, usage+": "+strings.Join(values, ", "))
	Complete(cmd, flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// Complete completes the values of a flag, or, with an empty name, the arguments of a command.
func Complete(cmd *cobra.Command, flag string, complete cobra.CompletionFunc) {
	if flag == "" {
		cmd.ValidArgsFunction = complete
	} else if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err) // the flag is one of the command's own
	}
}
