// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	localworld "github.com/autonode-io/autonode/test/world"
	"github.com/autonode-io/autonode/test/world/programs"
	"github.com/autonode-io/autonode/test/world/progress"
)

// Environment of the process that `world up --detach` leaves behind: it reports its progress on a file descriptor, and the width
// of the terminal at the other end, 0 if that is none.
const (
	detachedEnv = "AUTONODE_WORLD_DETACHED"
	detachedFD  = 3
)

// newWorldCommand returns `autonode-dev world`, which runs the local world.
func newWorldCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "world",
		Short: "Run a whole platform on this machine",
		Long: `Run a whole platform on this machine.

A world is a management cluster and guest clusters with real control planes, Cluster API, a cloud whose machines
are kwok nodes, a registry with release payloads, and AutoNode. It needs only the go command: no containers, no root.
Everything runs below one folder, and goes with 'autonode-dev world down'.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var dir string
	addDirFlag(cmd.PersistentFlags(), &dir)
	cmd.AddCommand(
		newWorldUpCommand(&dir), newWorldDownCommand(&dir), newWorldStatusCommand(&dir), newWorldKubectlCommand(&dir),
		newWorldUpgradeCommand(&dir), newWorldBuildCommand(),
	)
	return cmd
}

// addDirFlag adds the flag that chooses a world.
func addDirFlag(flags *pflag.FlagSet, dir *string) {
	byDefault := os.Getenv("AUTONODE_WORLD")
	if byDefault == "" {
		byDefault = ".world"
	}
	flags.StringVar(dir, "dir", byDefault, "the world's folder; $AUTONODE_WORLD changes the default")
}

func newWorldUpCommand(dir *string) *cobra.Command {
	var cfg localworld.Config
	var detach bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a world",
		Long: `Start a world, and stop it with Ctrl-C. With --detach it goes on running until 'autonode-dev world down'.

Administrators' kubeconfigs are written to the world's folder, one for each cluster. The first start builds the control
planes, which takes about ten minutes on two cores; later ones use the cache.`,
		Example: `  # A management cluster and one guest, "blue"
  autonode-dev world up

  # Two guests, left running
  autonode-dev world up --guests blue,green --detach

  # A guest that can be upgraded to the next minor version of Kubernetes
  autonode-dev world up --next-minor --detach
  autonode-dev world upgrade blue --version ` + programs.KubernetesNextMinorVersion + `

  # Cluster API as it ships, with its rate limits
  autonode-dev world up --cluster-api defaults
  autonode-dev world up --infrastructure aws

  # Without AutoNode's operator, to try another Karpenter or a program in a debugger
  autonode-dev world up --without-operator`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.Dir = *dir
			if detach {
				return upDetached(cmd.Context(), cmd.OutOrStdout(), cfg.Dir, attachedArgs(cmd.Flags()))
			}
			return up(cmd.Context(), cmd.OutOrStdout(), cfg)
		},
	}
	cmd.Flags().StringSliceVar(&cfg.Guests, "guests", []string{localworld.DefaultGuest}, "names of the guest clusters")
	cmd.Flags().BoolVar(&cfg.WithoutOperator, "without-operator", false, "run no AutoNode operator, and so no Karpenter")
	cmd.Flags().StringVar(&cfg.Source, "source", "",
		"folder of AutoNode's source, which its programs are built from; default $AUTONODE_SOURCE, else the one around the working directory")
	cmd.Flags().StringVar(&cfg.ClusterAPI, "cluster-api", localworld.ClusterAPITuned,
		"how Cluster API runs: tuned, unlimited, which also reconciles objects as often as they change, or defaults, which is as it ships")
	cmd.Flags().StringVar(&cfg.Infrastructure, "infrastructure", localworld.InfrastructureKwok,
		"what makes machines: kwok, or aws, which is Cluster API Provider AWS with an EC2 API of the world's own")
	cmd.Flags().BoolVar(&cfg.NextMinor, "next-minor", false,
		"let guests be upgraded to "+programs.KubernetesNextMinorVersion+", with a payload for it; the first time, its API server is built")
	cmd.Flags().BoolVar(&detach, "detach", false, "return when the world is ready, and leave it running")
	return cmd
}

// up runs a world in this process until it is told to stop.
func up(ctx context.Context, out io.Writer, cfg localworld.Config) error {
	cfg.Progress = progress.New(out)
	width, detached := os.LookupEnv(detachedEnv)
	var pipe *os.File
	if detached {
		// The world's own children must not hold the pipe open: its end reports that the world is ready.
		syscall.CloseOnExec(detachedFD)
		pipe = os.NewFile(detachedFD, "progress")
		cfg.Progress = progress.New(pipe)
		if columns, err := strconv.Atoi(width); err == nil && columns > 0 {
			cfg.Progress = progress.NewLive(pipe, columns)
		}
		if err := os.Unsetenv(detachedEnv); err != nil {
			return err
		}
		// Whoever started us may go away before we are ready.
		signal.Ignore(syscall.SIGPIPE)
	}
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return fmt.Errorf("making the world's folder: %w", err)
	}
	flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if !detached { // else it is our error output, too
		flags |= os.O_TRUNC
	}
	log, err := os.OpenFile(logFile(cfg.Dir), flags, 0o644)
	if err != nil {
		return fmt.Errorf("opening the world's log: %w", err)
	}
	defer func() { _ = log.Close() }()
	localworld.RedirectLogs(log)

	w, err := localworld.Start(ctx, cfg)
	if err != nil {
		if detached {
			fmt.Fprintln(pipe, "error:", err)
		}
		return err
	}
	if detached {
		_ = pipe.Close()
	} else {
		if err := printSummary(out, cfg.Dir); err != nil {
			return errors.Join(err, w.Stop())
		}
		fmt.Fprintln(out, "\nStop it with Ctrl-C.")
	}
	select {
	case <-ctx.Done():
		err = nil
	case err = <-w.Failed():
	}
	if !detached {
		fmt.Fprintln(out, "\nStopping the world")
	}
	return errors.Join(err, w.Stop())
}

func logFile(dir string) string { return filepath.Join(dir, "world.log") }

// attachedArgs returns the arguments that start the same world without --detach.
func attachedArgs(flags *pflag.FlagSet) []string {
	args := []string{"world", "up"}
	flags.Visit(func(flag *pflag.Flag) {
		value := flag.Value.String()
		if list, ok := flag.Value.(pflag.SliceValue); ok {
			value = strings.Join(list.GetSlice(), ",")
		}
		if flag.Name != "detach" {
			args = append(args, "--"+flag.Name+"="+value)
		}
	})
	return args
}

// upDetached starts this program again with args, in a session of its own, and returns when its world is ready.
func upDetached(ctx context.Context, out io.Writer, dir string, args []string) error {
	if running, err := localworld.Running(dir); err != nil {
		return err
	} else if running {
		return fmt.Errorf("a world runs in %s already; stop it with 'autonode-dev world down', or choose another folder", dir)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the world's folder: %w", err)
	}
	log, err := os.OpenFile(logFile(dir), os.O_CREATE|os.O_WRONLY|os.O_APPEND|os.O_TRUNC, 0o644)
	if err != nil {
		return fmt.Errorf("opening the world's log: %w", err)
	}
	defer func() { _ = log.Close() }()
	read, write, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("making a pipe: %w", err)
	}
	defer func() { _ = read.Close() }()

	width := 0
	if live, columns := progress.New(out).Live(); live {
		width = columns
	}
	child := exec.CommandContext(context.WithoutCancel(ctx), self, args...) // it is to outlive us
	child.Env = append(os.Environ(), fmt.Sprintf("%s=%d", detachedEnv, width))
	child.Stdout, child.Stderr = log, log
	child.ExtraFiles = []*os.File{write}
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = child.Start()
	_ = write.Close()
	if err != nil {
		return fmt.Errorf("starting the world's process: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = child.Process.Signal(syscall.SIGTERM) })
	defer stop()
	// The pipe ends when the world is ready, or has failed.
	if _, err := io.Copy(out, read); err != nil {
		return fmt.Errorf("reading the world's progress: %w", err)
	}
	if state, err := localworld.ReadState(dir); err == nil && state.Phase == localworld.PhaseReady && ctx.Err() == nil {
		return errors.Join(child.Process.Release(), printSummary(out, dir))
	}
	if err := child.Wait(); err != nil {
		return fmt.Errorf("the world didn't start; see %s and %s", logFile(dir), localworld.LogDir(dir))
	}
	return context.Cause(ctx)
}

// printSummary prints what runs where, and how to use it.
func printSummary(out io.Writer, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	state, err := localworld.ReadState(dir)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, line := range state.Summary() {
		fmt.Fprintf(table, "  %s\t%s\t%s\n", line.Name, line.Address, line.About)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	var kubeconfigs []string
	for _, name := range append([]string{localworld.Management}, state.Guests...) {
		kubeconfigs = append(kubeconfigs, localworld.KubeconfigPath(dir, name))
	}
	fmt.Fprintf(out, "\n  export KUBECONFIG=%s   # contexts %s\n", strings.Join(kubeconfigs, ":"), strings.Join(append([]string{localworld.Management}, state.Guests...), ", "))
	fmt.Fprintf(out, "  logs: %s\n", localworld.LogDir(dir))
	return nil
}

func newWorldDownCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use:     "down",
		Short:   "Stop a world, and wait until every process has gone",
		Example: "  autonode-dev world down",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			started := time.Now()
			err := localworld.Down(cmd.Context(), *dir)
			if errors.Is(err, localworld.ErrNoWorld) {
				fmt.Fprintf(cmd.OutOrStdout(), "No world runs in %s\n", *dir)
				return nil
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Stopped the world in %s after %s; its logs stay in %s\n", *dir, progress.Duration(time.Since(started)), localworld.LogDir(*dir))
			return nil
		},
	}
}

func newWorldStatusCommand(dir *string) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what a world runs",
		Example: `  autonode-dev world status

  # For a program
  autonode-dev world status -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			status, err := localworld.ReadStatus(*dir)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			switch output {
			case "json":
				encoder := json.NewEncoder(out)
				encoder.SetIndent("", "  ")
				return encoder.Encode(status)
			case "":
				return printStatus(out, status)
			}
			return fmt.Errorf("-o %s: the only format is json", output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json, or nothing for a table")
	return cmd
}

func printStatus(out io.Writer, status localworld.Status) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tADDRESS\tPID\tSTATE\tMEMORY\tABOUT")
	for _, c := range status.Components {
		state, memory := "Running", mebibytes(c.Memory)
		if !c.Running {
			state = "Gone"
		}
		if c.Memory == 0 {
			memory = "-"
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\t%s\n", c.Name, dash(c.Address), c.PID, state, memory, dash(c.About))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%s since %s, %s in all\n", status.Phase, status.Started.Local().Format(time.DateTime), mebibytes(status.Memory))
	return nil
}

func mebibytes(bytes int64) string { return fmt.Sprintf("%d MiB", bytes>>20) }

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func newWorldKubectlCommand(dir *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kubectl CLUSTER [ARGUMENTS]",
		Short: "Run kubectl as an administrator of one of a world's clusters",
		Example: `  autonode-dev world kubectl management get hostedclusters -A

  autonode-dev world kubectl blue get nodes`,
		Args: cobra.MinimumNArgs(1),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			state, err := localworld.ReadState(*dir)
			if err != nil || len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return append([]string{localworld.Management}, state.Guests...), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			state, err := localworld.ReadState(*dir)
			if err != nil {
				return err
			}
			kubeconfig, err := filepath.Abs(localworld.KubeconfigPath(*dir, args[0]))
			if err != nil {
				return err
			}
			if _, err := os.Stat(kubeconfig); err != nil {
				return fmt.Errorf("no cluster %q; there are %s", args[0], strings.Join(append([]string{localworld.Management}, state.Guests...), ", "))
			}
			// Replacing this process keeps kubectl's exit code, signals and terminal as they are.
			err = syscall.Exec(state.Kubectl, append([]string{"kubectl"}, args[1:]...), withKubeconfig(os.Environ(), kubeconfig))
			return fmt.Errorf("running %s: %w", state.Kubectl, err)
		},
	}
	cmd.Flags().SetInterspersed(false) // what follows the cluster is kubectl's
	return cmd
}

// withKubeconfig returns an environment with one KUBECONFIG. Of two, which a shell that has exported another one would make, programs read
// the first: kubectl would then run against another cluster.
func withKubeconfig(environment []string, path string) []string {
	const variable = "KUBECONFIG="
	others := slices.DeleteFunc(slices.Clone(environment), func(entry string) bool { return strings.HasPrefix(entry, variable) })
	return append(others, variable+path)
}

func newWorldUpgradeCommand(dir *string) *cobra.Command {
	var version string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "upgrade GUEST",
		Short: "Replace a guest's API server by one of another version",
		Long: `Replace a guest's API server by one of another version, as the hosting platform would.

The same happens when spec.version changes of the guest's HostedControlPlane.`,
		Example: "  autonode-dev world upgrade blue --version " + programs.KubernetesUpgradedVersion,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			if _, err := localworld.ReadState(*dir); err != nil {
				return err
			}
			if !strings.HasPrefix(version, "v") {
				version = "v" + version
			}
			management, err := clientcmd.BuildConfigFromFlags("", localworld.KubeconfigPath(*dir, localworld.Management))
			if err != nil {
				return err
			}
			klog.SetLogger(logr.Discard()) // the client's complaints about an API server that restarts
			started := time.Now()
			if err := localworld.UpgradeControlPlane(ctx, management, args[0], version); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s runs %s after %s\n", args[0], version, progress.Duration(time.Since(started)))
			return nil
		},
	}
	cmd.Flags().StringVar(&version, "version", programs.KubernetesUpgradedVersion,
		"the version to run: "+programs.KubernetesVersion+" or "+programs.KubernetesUpgradedVersion+", and "+programs.KubernetesNextMinorVersion+" in a world with --next-minor")
	cmd.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "how long to wait")
	return cmd
}

func newWorldBuildCommand() *cobra.Command {
	var printAssets, nextMinor bool
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Build the control planes, and start nothing",
		Example: `  autonode-dev world build

  # For tests that need an API server
  KUBEBUILDER_ASSETS=$(autonode-dev world build --print-assets) go test ./...`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// Progress goes to the error output, so that the path can be captured.
			opts := programs.Options{Progress: progress.New(cmd.ErrOrStderr())}
			set, err := programs.Ensure(cmd.Context(), opts)
			if err != nil {
				return err
			}
			if nextMinor {
				if set, err = set.WithNextMinor(cmd.Context(), opts); err != nil {
					return err
				}
			}
			if printAssets {
				fmt.Fprintln(cmd.OutOrStdout(), set.EnvtestAssets())
			} else {
				fmt.Fprintf(cmd.OutOrStdout(), "The control planes are in %s\n", set.Dir)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&nextMinor, "next-minor", false, "build an API server of "+programs.KubernetesNextMinorVersion+" too, for tests of minor upgrades")
	cmd.Flags().BoolVar(&printAssets, "print-assets", false, "print only the folder for KUBEBUILDER_ASSETS")
	return cmd
}
