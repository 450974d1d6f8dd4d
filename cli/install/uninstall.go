// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/autonode-io/autonode/cli/cluster"
	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/manifests"
)

// UninstallOptions are those of `autonode uninstall`.
type UninstallOptions struct {
	Management             cluster.Flags
	LeaveNodes, DeleteCRDs bool
	Timeout                time.Duration
}

// NewUninstallCommand returns `autonode uninstall`.
func NewUninstallCommand() *cobra.Command {
	var o UninstallOptions
	cmd := command.New(&cobra.Command{
		Use:   "uninstall",
		Short: "Remove the operator from a management cluster",
		Long: `Remove the operator from a management cluster.

The operator drains the nodes of HostedClusters that are deleted, so the command refuses while HostedClusters have
nodes. With --leave-nodes it removes the operator anyway: the nodes stay, and Karpenter runs until its token
expires, seven to eight hours later. The CRDs and their guard stay unless --delete-crds is given, which requires that
no HostedCluster exists.`,
		Example: `  kubectl delete hostedclusters.autonode.io --all -A
  autonode uninstall --delete-crds`,
	}, &o)
	flags := cmd.Flags()
	o.Management.Add(cmd, cluster.Management, nil)
	flags.BoolVar(&o.LeaveNodes, "leave-nodes", false, "remove the operator although HostedClusters have nodes, which stay")
	flags.BoolVar(&o.DeleteCRDs, "delete-crds", false, "delete the CRDs, too, and with them CapacityAccounts and catalogs")
	flags.DurationVar(&o.Timeout, "timeout", 5*time.Minute, "how long to wait for each object to be deleted")
	return cmd
}

// Run removes the operator unless that harms hosted clusters.
func (o *UninstallOptions) Run(ctx context.Context, streams command.Streams) error {
	objects, err := manifests.Render(manifests.Options{Image: manifests.Operator + ":any"})
	if err != nil {
		return err
	}
	management, err := o.Management.Client()
	if err != nil {
		return err
	}
	using, err := inUse(ctx, management, o.DeleteCRDs)
	if err != nil {
		return err
	}
	switch {
	case using != "" && o.DeleteCRDs:
		return fmt.Errorf("%s. Deleting the CRDs deletes HostedClusters, which nothing drains without the operator; "+
			"run `kubectl delete hostedclusters.autonode.io --all -A` first, or leave out --delete-crds", using)
	case using != "" && !o.LeaveNodes:
		return fmt.Errorf("%s. Run `kubectl delete hostedclusters.autonode.io --all -A` first, which drains them; "+
			"or keep the nodes without the operator with --leave-nodes", using)
	}
	installer := &Installer{Management: management, Out: streams.Out, Timeout: o.Timeout}
	if found, err := installer.Found(ctx, objects); err != nil {
		return err
	} else if !found {
		return errors.New("this cluster has neither the operator nor its CRDs, so there is nothing to remove: " +
			"name the management cluster with --context or --kubeconfig; AutoNode installs no operator in guests")
	}
	return installer.Remove(ctx, objects, o.DeleteCRDs)
}
