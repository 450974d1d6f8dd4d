// SPDX-License-Identifier: Apache-2.0

// The program autonode-operator runs Karpenter for hosted clusters.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	_ "time/tzdata" // the image has no time zones, and a maintenance window names one

	"github.com/spf13/cobra"
	"go.uber.org/zap/zapcore"
	"golang.org/x/term"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/autonode-io/autonode/cmd/about"
	"github.com/autonode-io/autonode/operator"
	"github.com/autonode-io/autonode/operator/message"
	"github.com/autonode-io/autonode/operator/steps/component"
)

var (
	// version is stamped when the program is built.
	version string
	// karpenterImage is stamped when a release is built: Karpenter's image, by digest.
	karpenterImage string
)

func programInfo() about.Info { return about.New("autonode-operator", version) }

// garbage is how many percent of what is in use may be garbage, where GOGC doesn't say. Most of the operator's memory are the caches of
// guests, which hardly change: to collect more often costs next to nothing, and saves a third of it.
const garbage = 25

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbage)
	}
	if err := command().ExecuteContext(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, "autonode-operator:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	f := operator.Flags{Options: operator.Options{LeaderElectionNamespace: namespace(), KarpenterImage: karpenterImage}}
	cmd := &cobra.Command{
		Use:   "autonode-operator",
		Short: "Run Karpenter for hosted clusters",
		Long: `autonode-operator watches HostedClusters in a management cluster and runs the Karpenter that each one's release
payload names, or the one that the operator was released with.

The management cluster is the one of --kubeconfig or KUBECONFIG, else the one that it runs in.`,
		Example: `  # In a cluster: two replicas, of which one works.
  autonode-operator --leader-elect

  # One of two operators that divide the hosted clusters among them.
  autonode-operator --hosted-cluster-selector autonode.io/shard=a

  # On a developer's machine, against the cluster of a kubeconfig.
  KUBECONFIG=management.kubeconfig autonode-operator --leader-elect=false`,
		Args:          cobra.NoArgs,
		Version:       programInfo().String(),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.Validate(); err != nil {
				return err
			}
			if err := setLogger(f.LogLevel, f.LogFormat); err != nil {
				return err
			}
			options := f.Options
			if f.KarpenterSettings != "" {
				var err error
				if options.Karpenter, err = component.ReadSettings(f.KarpenterSettings); err != nil {
					return fmt.Errorf("--karpenter-settings: %w", err)
				}
			}
			kinds, problems, err := operator.ReadProfiles(f.InfrastructureProfiles)
			if err != nil {
				return fmt.Errorf("--infrastructure-profiles: %w", err)
			}
			for _, problem := range problems {
				ctrl.Log.Error(problem, "reading --infrastructure-profiles; the rest of it is in use")
			}
			options.Infrastructure = kinds
			options.Version = programInfo().Version
			return run(cmd.Context(), options)
		},
	}
	cmd.SetVersionTemplate("{{.Version}}")
	flags := cmd.Flags()
	f.AddTo(flags)
	if kubeconfig := flag.Lookup("kubeconfig"); kubeconfig != nil {
		flags.AddGoFlag(kubeconfig)
	}
	return cmd
}

func run(ctx context.Context, options operator.Options) error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("finding the management cluster: %w", err)
	}
	ctrl.Log.Info("Starting", "version", programInfo().Version, "management", config.Host)
	return operator.Run(ctx, config, options)
}

// namespace is where the operator runs, from the downward API.
func namespace() string {
	if namespace := os.Getenv("POD_NAMESPACE"); namespace != "" {
		return namespace
	}
	return "autonode-system"
}

func setLogger(level, format string) error {
	parsed, err := zapcore.ParseLevel(level)
	if err != nil {
		return fmt.Errorf("--log-level: %w", err)
	}
	encoder := zap.JSONEncoder(func(c *zapcore.EncoderConfig) { c.EncodeTime = zapcore.RFC3339TimeEncoder })
	switch format {
	case "json":
	case "text":
		encoder = zap.ConsoleEncoder()
	case "auto":
		if term.IsTerminal(int(os.Stderr.Fd())) {
			encoder = zap.ConsoleEncoder()
		}
	default:
		return fmt.Errorf("--log-format: %q is neither auto, json nor text", format)
	}
	logger := message.Logger(zap.New(encoder, zap.Level(parsed), zap.StacktraceLevel(zapcore.PanicLevel)))
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
	return nil
}
