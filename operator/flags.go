// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.uber.org/zap/zapcore"

	"github.com/autonode-io/autonode/operator/guest"
	"github.com/autonode-io/autonode/operator/guest/egress"
	"github.com/autonode-io/autonode/operator/provider/clusterapi"
	"github.com/autonode-io/autonode/operator/steps/access"
	"github.com/autonode-io/autonode/operator/steps/component"
	"github.com/autonode-io/autonode/operator/steps/teardown"
	"github.com/autonode-io/autonode/payload"
)

// Flags are the flags of autonode-operator: Options, and files that other Options are read from.
type Flags struct {
	Options
	LogLevel, LogFormat string
	// KarpenterSettings and InfrastructureProfiles are files; empty for none.
	KarpenterSettings, InfrastructureProfiles string
}

var logFormats = []string{"auto", "json", "text"}

// AddTo adds the flags. The values of LeaderElectionNamespace and KarpenterImage before the call are their defaults.
func (f *Flags) AddTo(flags *pflag.FlagSet) {
	flags.StringVar(&f.MetricsAddress, "metrics-bind-address", ":8080", `address to serve Prometheus metrics on; "0" serves none`)
	flags.StringVar(&f.ProbeAddress, "health-probe-bind-address", ":8081", `address to serve /healthz and /readyz on; "0" serves none`)
	flags.StringVar(&f.PprofAddress, "pprof-bind-address", "0",
		`address to serve profiles on without authentication, such as 127.0.0.1:6060; "0" serves none`)
	flags.BoolVar(&f.LeaderElection, "leader-elect", true, "let one of several replicas work, by a Lease in the management cluster")
	flags.StringVar(&f.LeaderElectionNamespace, "leader-election-namespace", f.LeaderElectionNamespace, "namespace of that Lease")
	flags.DurationVar(&f.LeaseDuration, "leader-elect-lease-duration", DefaultLeaseDuration,
		"how long other replicas wait for a leader that doesn't renew the Lease any more before one of them takes over")
	flags.DurationVar(&f.RenewDeadline, "leader-elect-renew-deadline", DefaultRenewDeadline,
		"how long a leader tries to renew the Lease before it ends; longer where the API server is slow")
	flags.DurationVar(&f.RetryPeriod, "leader-elect-retry-period", DefaultRetryPeriod, "time between attempts to get or renew the Lease")
	flags.StringVar(&f.LeaseName, "lease-name", "", "name of that Lease; by default it depends on --hosted-cluster-selector")
	flags.StringVar(&f.HostedClusterSelector, "hosted-cluster-selector", "",
		"label selector of the HostedClusters to look after, so that several operators can divide them; empty selects all")
	flags.DurationVar(&f.GuestTokenLifetime, "guest-token-lifetime", access.DefaultTokenLifetime,
		"how long a token of Karpenter for its guest cluster is valid, 10m at least; it is renewed after an hour, or when a third of that "+
			"is left")
	flags.DurationVar(&f.DrainTimeout, "drain-timeout", teardown.DefaultDrainTimeout,
		"how long nodes may drain, when AutoNode is turned off or a HostedCluster deleted, before pods are terminated by force; a "+
			"HostedCluster's spec.nodeDrain has precedence")
	flags.DurationVar(&f.GuestTimeout, "guest-timeout", guest.DefaultTimeout,
		"how long a call to a guest's API server may take before the guest counts as not answering")
	flags.StringVar(&f.GuestNetworks, "guest-networks", egress.Private,
		"networks, beside public ones, that guests' API servers may be in; loopback and link-local addresses only if they are listed, "+
			"and the management API server's own only if it has an entry of its own, such as 10.96.0.1/32")
	flags.StringVar(&f.TemplateGroups, "template-groups", clusterapi.DefaultGroups,
		"API groups that machine and bootstrap templates may be of; Karpenter gets a Role for the kinds that a HostedCluster names")
	flags.StringVar(&f.KarpenterSettings, "karpenter-settings", "",
		"YAML file with resources, scheduling, feature gates and rate limits for the Karpenter of every hosted cluster; it is read at the start")
	flags.StringVar(&f.InfrastructureProfiles, "infrastructure-profiles", "",
		"YAML file of profiles of infrastructure kinds, which declare the addresses that their machines choose themselves; it is read "+
			"at the start")
	flags.StringVar(&f.RegistryNetworks, "registry-networks", "",
		"networks, beside public ones, that registries, mirrors, token servers and what they redirect to may be in, such as 10.0.0.0/8")
	flags.StringVar(&f.RegistryCAFile, "registry-ca-file", "",
		"PEM certificates of authorities to trust for registries beside the system's; the file is read again when it changes")
	flags.StringVar(&f.KarpenterImage, "karpenter-image", f.KarpenterImage,
		"Karpenter's image, by digest, for HostedClusters without spec.release; empty makes spec.release required")
	flags.StringVar(&f.PayloadSignatures, "payload-signatures", SignaturesOff,
		"policy for payloads without a signature by a key in --payload-keys-file or an identity in --payload-identities-file: off, warn (the "+
			"condition ReleaseResolved reports them) or enforce (rejects them)")
	flags.StringVar(&f.PayloadKeysFile, "payload-keys-file", "",
		"PEM file of 1 to 16 public keys that sign payloads with \"cosign sign --key\"")
	flags.StringVar(&f.PayloadIdentitiesFile, "payload-identities-file", "",
		"YAML list of 1 to 16 identities, {issuer, subject} or {issuer, subjectRegExp}, that sign payloads with \"cosign sign\" without a key")
	flags.StringVar(&f.PayloadTrustedRootFile, "payload-trusted-root-file", "",
		"Sigstore trusted root in JSON, as \"cosign trusted-root create\" writes it, for --payload-identities-file")
	flags.StringVar(&f.LogLevel, "log-level", "info", "least important log lines to write: debug, info or error")
	flags.StringVar(&f.LogFormat, "log-format", "auto", "log lines as json or text; auto is text on a terminal")
}

// Validate reports the problem with the values. It reads no file and connects to nothing.
func (f *Flags) Validate() error {
	if _, err := zapcore.ParseLevel(f.LogLevel); err != nil {
		return fmt.Errorf("--log-level: %q is none of debug, info, error", f.LogLevel)
	}
	if !slices.Contains(logFormats, f.LogFormat) {
		return fmt.Errorf("--log-format: %q is none of %s", f.LogFormat, strings.Join(logFormats, ", "))
	}
	return f.Options.Validate()
}

// Validate reports the problem with the options. It reads no file and connects to nothing.
func (o *Options) Validate() error {
	if o.GuestTokenLifetime != 0 && o.GuestTokenLifetime < minTokenLifetime {
		return fmt.Errorf("the guest token's lifetime %s is less than %s, which API servers demand", o.GuestTokenLifetime, minTokenLifetime)
	}
	if o.DrainTimeout < 0 {
		return fmt.Errorf("the drain timeout %s is negative", o.DrainTimeout)
	}
	if o.GuestTimeout < 0 {
		return fmt.Errorf("the timeout of calls to guests %s is negative", o.GuestTimeout)
	}
	if _, err := parseShard(*o); err != nil {
		return err
	}
	if _, err := egress.NewPolicy(o.GuestNetworks); err != nil {
		return fmt.Errorf("networks of guests: %w", err)
	}
	if _, err := egress.NewPolicy(o.RegistryNetworks); err != nil {
		return fmt.Errorf("networks of registries: %w", err)
	}
	if o.KarpenterImage != "" {
		if err := payload.CheckPinned(o.KarpenterImage); err != nil {
			return fmt.Errorf("--karpenter-image: %w", err)
		}
	}
	return checkSignatures(o)
}

// CheckArguments reports the operator's error for arguments of its command line, beside those of its Deployment.
func CheckArguments(arguments []string) error {
	f := Flags{Options: Options{LeaderElectionNamespace: "autonode-system"}}
	flags := pflag.NewFlagSet("autonode-operator", pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	f.AddTo(flags)
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if rest := flags.Args(); len(rest) > 0 {
		return fmt.Errorf("%q isn't a flag", rest[0])
	}
	return f.Validate()
}

// CheckSettings reports the operator's error for the file of --karpenter-settings.
func CheckSettings(content []byte) error {
	_, err := component.ParseSettings(content)
	return err
}
