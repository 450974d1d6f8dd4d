// SPDX-License-Identifier: Apache-2.0

// Package check is `autonode check`, which checks a management cluster, or one Cluster in it, for what AutoNode needs, and reports how to
// provide what is missing.
package check

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/discovery"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/cli/cluster"
	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/cli/printer"
	"github.com/autonode-io/autonode/manifests"
)

// Options are those of `autonode check`.
type Options struct {
	Management cluster.Flags
	// Name of the Cluster to check; empty for the management cluster itself.
	Name, Namespace   string
	OperatorNamespace string
	Output            string
}

// NewCommand returns `autonode check`.
func NewCommand() *cobra.Command {
	var o Options
	cmd := command.New(&cobra.Command{
		Use:   "check [[NAMESPACE/]NAME]",
		Short: "Check the requirements of a management cluster or of one Cluster, and show how to meet them",
		Long: `Check the requirements of a management cluster or of one Cluster, and show how to meet them.

Without NAME the command checks the management cluster: versions, Cluster API and its providers, AutoNode's CRDs and
policies, the operator, its permissions and yours, CapacityAccounts, catalogs and HostedClusters. With the NAME of a
HostedCluster or of a Cluster it checks that one: control plane, kubeconfig, templates, bootstrap, payload, Karpenter.
NAME may be a Cluster without a HostedCluster.

✓ marks a requirement that is met, ! a warning, which may be intended, and ✗ a failure. Below each ! and ✗ is the fix.
The command writes nothing, and exits with code 1 after a failure.`,
		Example: `  autonode check
  autonode check clusters/blue
  autonode check -o json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && o.Namespace != "" {
				return fmt.Errorf("--namespace needs a NAME; see `%s --help`", cmd.CommandPath())
			}
			return command.AtMostOne(&o.Name)(cmd, args)
		},
	}, &o)
	flags := cmd.Flags()
	o.Management.Add(cmd, cluster.Management, nil)
	flags.StringVarP(&o.Namespace, "namespace", "n", "", "namespace of NAME; by default that of the context")
	flags.StringVar(&o.OperatorNamespace, "operator-namespace", manifests.Namespace, "namespace of the operator")
	printer.AddFlag(cmd, &o.Output)
	o.Management.Complete(cmd, &v1beta1.HostedCluster{}, "")
	o.Management.Complete(cmd, &corev1.Namespace{}, "namespace", "operator-namespace")
	return cmd
}

// Run prints what it has checked.
func (o *Options) Run(ctx context.Context, streams command.Streams) error {
	var key client.ObjectKey
	if o.Name != "" {
		var err error
		if key, err = o.Management.Find(ctx, o.Name, o.Namespace, "a HostedCluster or a Cluster, like clusters/blue", &v1beta1.HostedCluster{},
			&clusterv1.Cluster{}); err != nil {
			return err
		}
	}
	config, err := o.Management.Config()
	if err != nil {
		return err
	}
	management, err := o.Management.Client()
	if err != nil {
		return err
	}
	report := &Report{Checks: []Check{}}
	if o.Name == "" {
		client, err := discovery.NewDiscoveryClientForConfig(config)
		if err != nil {
			return fmt.Errorf("connecting to %s: %w", config.Host, err)
		}
		info, err := client.ServerVersion()
		if err != nil {
			return fmt.Errorf("asking the version of %s: %w", config.Host, err)
		}
		namespace, err := o.Management.Namespace()
		if err != nil {
			return err
		}
		m := &managementCheck{Client: management, Report: report, operatorNamespace: o.OperatorNamespace, userNamespace: namespace}
		if err := m.run(ctx, info.GitVersion); err != nil {
			return err
		}
	} else {
		c := &clusterCheck{Client: management, Report: report, operatorNamespace: o.OperatorNamespace}
		if err := c.run(ctx, key); err != nil {
			return err
		}
	}
	if err := printer.Print(streams.Out, o.Output, report, report.print, report.subjects()...); err != nil {
		return err
	}
	return report.err()
}
