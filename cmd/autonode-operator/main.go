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
	"github.com/autonode-io/autonode/operator/guest"
	"github.com/autonode-io/autonode/operator/guest/egress"
	"github.com/autonode-io/autonode/operator/message"
	"github.com/autonode-io/autonode/operator/provider/clusterapi"
	"github.com/autonode-io/autonode/operator/steps/access"
	"github.com/autonode-io/autonode/operator/steps/component"
	"github.com/autonode-io/autonode/operator/steps/teardown"
	"github.com/autonode-io/autonode/payload"
)

var (
	// version is stamped when the program is built.
	version string
	// karpenterImage is stamped when a release is built: Karpenter's image, by digest.
	karpenterImage string
)

func programInfo() about.Info { return about.Of("autonode-operator", version) }

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
	options := operator.Options{}
	var logLevel, logFormat, karpenterSettings, infrastructureProfiles string
	cmd := &cobra.Command{
		Use:   "autonode-operator",
		Short: "Run Karpenter for hosted clusters",
		Long: `autonode-operator watches HostedClusters in a management cluster and runs the Karpenter that each one's release payload names, or the
one that the operator was released with.

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
			if err := setLogger(logLevel, logFormat); err != nil {
				return err
			}
			if karpenterSettings != "" {
				var err error
				if options.Karpenter, err = component.ReadSettings(karpenterSettings); err != nil {
					return fmt.Errorf("--karpenter-settings: %w", err)
				}
			}
			kinds, problems, err := operator.ReadProfiles(infrastructureProfiles)
			if err != nil {
				return fmt.Errorf("--infrastructure-profiles: %w", err)
			}
			for _, problem := range problems {
				ctrl.Log.Error(problem, "reading --infrastructure-profiles; the rest of it is in use")
			}
			options.Infrastructure = kinds
			options.Version = programInfo().Version
			if options.KarpenterImage != "" {
				if err := payload.CheckPinned(options.KarpenterImage); err != nil {
					return fmt.Errorf("--karpenter-image: %w", err)
				}
			}
			return run(cmd.Context(), options)
		},
	}
	cmd.SetVersionTemplate("{{.Version}}")
	flags := cmd.Flags()
	flags.StringVar(&options.MetricsAddress, "metrics-bind-address", ":8080", `address to serve Prometheus metrics on; "0" serves none`)
	flags.StringVar(&options.ProbeAddress, "health-probe-bind-address", ":8081", `address to serve /healthz and /readyz on; "0" serves none`)
	flags.StringVar(&options.PprofAddress, "pprof-bind-address", "0", `address to serve profiles on without authentication, such as 127.0.0.1:6060; "0" serves none`)
	flags.BoolVar(&options.LeaderElection, "leader-elect", true, "let one of several replicas work, by a Lease in the management cluster")
	flags.StringVar(&options.LeaderElectionNamespace, "leader-election-namespace", namespace(), "namespace of that Lease")
	flags.DurationVar(&options.LeaseDuration, "leader-elect-lease-duration", operator.DefaultLeaseDuration,
		"how long other replicas wait for a leader that doesn't renew the Lease any more before one of them takes over")
	flags.DurationVar(&options.RenewDeadline, "leader-elect-renew-deadline", operator.DefaultRenewDeadline,
		"how long a leader tries to renew the Lease before it ends; longer where the API server is slow")
	flags.DurationVar(&options.RetryPeriod, "leader-elect-retry-period", operator.DefaultRetryPeriod, "time between attempts to get or renew the Lease")
	flags.StringVar(&options.LeaseName, "lease-name", "", "name of that Lease; by default it depends on --hosted-cluster-selector")
	flags.StringVar(&options.HostedClusterSelector, "hosted-cluster-selector", "",
		"label selector of the HostedClusters to look after, so that several operators can divide them; empty selects all")
	flags.DurationVar(&options.GuestTokenLifetime, "guest-token-lifetime", access.DefaultTokenLifetime,
		"how long a token of Karpenter for its guest cluster is valid, 10m at least; it is renewed after an hour, or when a third of that is left")
	flags.DurationVar(&options.DrainTimeout, "drain-timeout", teardown.DefaultDrainTimeout,
		"how long nodes may drain, when AutoNode is turned off or a HostedCluster deleted, before pods are terminated by force; a HostedCluster's spec.nodeDrain has precedence")
	flags.DurationVar(&options.GuestTimeout, "guest-timeout", guest.DefaultTimeout,
		"how long a call to a guest's API server may take before the guest counts as not answering")
	flags.StringVar(&options.GuestNetworks, "guest-networks", egress.Private,
		"networks, beside public ones, that guests' API servers may be in; loopback and link-local addresses only if they are listed, "+
			"and the management API server's own only if it has an entry of its own, such as 10.96.0.1/32")
	flags.StringVar(&options.TemplateGroups, "template-groups", clusterapi.DefaultGroups,
		"API groups that machine and bootstrap templates may be of; Karpenter gets a Role for the kinds that a HostedCluster names")
	flags.StringVar(&karpenterSettings, "karpenter-settings", "",
		"YAML file with resources, scheduling, feature gates and rate limits for the Karpenter of every hosted cluster; it is read at the start")
	flags.StringVar(&infrastructureProfiles, "infrastructure-profiles", "",
		"YAML file of profiles of infrastructure kinds, which declare the addresses that their machines choose themselves; it is read at the start")
	flags.StringVar(&options.RegistryNetworks, "registry-networks", "",
		"networks, beside public ones, that registries, mirrors, token servers and what they redirect to may be in, such as 10.0.0.0/8")
	flags.StringVar(&options.RegistryCAFile, "registry-ca-file", "",
		"PEM certificates of authorities to trust for registries beside the system's; the file is read again when it changes")
	flags.StringVar(&options.KarpenterImage, "karpenter-image", karpenterImage,
		"Karpenter's image, by digest, for HostedClusters without spec.release; empty makes spec.release required")
	flags.StringVar(&options.PayloadSignatures, "payload-signatures", operator.SignaturesOff,
		"policy for payloads without a signature by a key in --payload-keys-file or an identity in --payload-identities-file: off, warn (the condition ReleaseResolved reports them) or enforce (rejects them)")
	flags.StringVar(&options.PayloadKeysFile, "payload-keys-file", "", "PEM file of 1 to 16 public keys that sign payloads with \"cosign sign --key\"")
	flags.StringVar(&options.PayloadIdentitiesFile, "payload-identities-file", "",
		"YAML list of 1 to 16 identities, {issuer, subject} or {issuer, subjectRegExp}, that sign payloads with \"cosign sign\" without a key")
	flags.StringVar(&options.PayloadTrustedRootFile, "payload-trusted-root-file", "",
		"Sigstore trusted root in JSON, as \"cosign trusted-root create\" writes it, for --payload-identities-file")
	flags.StringVar(&logLevel, "log-level", "info", "least important log lines to write: debug, info or error")
	flags.StringVar(&logFormat, "log-format", "auto", "log lines as json or text; auto is text on a terminal")
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
