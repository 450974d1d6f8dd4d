// SPDX-License-Identifier: Apache-2.0

// Package adopt is `autonode adopt`, which makes running Machines of a MachineDeployment Karpenter's nodes.
package adopt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/cli/cluster"
	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/cli/printer"
)

// batchSize limits the Machines of one pause.
const batchSize = 20

// Options are those of `autonode adopt machinedeployment`.
type Options struct {
	Management, Guest                      cluster.Flags
	Name, Namespace, NodePool, ExpireAfter string
	Machines                               int
	DryRun                                 bool
}

// NewCommand returns `autonode adopt`.
func NewCommand() *cobra.Command {
	var o Options
	cmd := command.New(&cobra.Command{
		Use:   "machinedeployment [NAMESPACE/]NAME",
		Short: "Make running Machines of a MachineDeployment Karpenter's nodes",
		Long: `Make running Machines of a MachineDeployment Karpenter's nodes. No machine is created or deleted, and no pod restarts.

The command lists the Machines, with the reason if one can't be adopted. In batches of 20 it removes them from their MachineSet,
lowers the replicas, pauses Karpenter for at most five minutes, and creates NodeClaims. After an interruption, run it again: it
continues. See docs/platform/adopt.md.`,
		Example: `  autonode adopt machinedeployment clusters-blue/workers --guest-kubeconfig blue.kubeconfig --dry-run
  autonode adopt machinedeployment workers -n clusters-blue --guest-kubeconfig blue.kubeconfig --machines 5`,
		Args: command.ExactlyOne(&o.Name, "NAME", "the MachineDeployment, like clusters-blue/workers"),
	}, &o)
	o.Management.Add(cmd, cluster.Management, &o.Guest)
	flags := cmd.Flags()
	flags.StringVarP(&o.Namespace, "namespace", "n", "", "namespace of the MachineDeployment; by default that of the context")
	flags.StringVar(&o.NodePool, "nodepool", "", "NodePool of the nodes; by default the guest's only one")
	flags.StringVar(&o.ExpireAfter, "expire-after", "", "expireAfter of the NodeClaims, such as 720h or Never; "+
		"by default the NodePool's and an even share of it for each")
	flags.IntVar(&o.Machines, "machines", 0, "adopt at most so many Machines; 0 for all")
	flags.BoolVar(&o.DryRun, "dry-run", false, "list the Machines, and write nothing")
	o.Management.Complete(cmd, &clusterv1.MachineDeployment{}, "")
	return command.Group(&cobra.Command{Use: "adopt", Short: "Make running Machines Karpenter's nodes"}, cmd)
}

// Run connects to both clusters.
func (o *Options) Run(ctx context.Context, streams command.Streams) error {
	key, err := o.Management.Find(ctx, o.Name, o.Namespace, "a MachineDeployment, like clusters-blue/workers", &clusterv1.MachineDeployment{})
	if err != nil {
		return err
	}
	management, err := o.Management.Client()
	if err != nil {
		return err
	}
	guest, err := o.Guest.Client()
	if err != nil || !o.Guest.Chosen() {
		return cmp.Or(err, errors.New("name the guest with --guest-kubeconfig or --guest-context"))
	}
	return o.Adopt(ctx, management, guest, key, streams)
}

// Adopt adopts Machines of a MachineDeployment. After an error, another call continues.
func (o *Options) Adopt(ctx context.Context, management, guest client.Client, key client.ObjectKey, streams command.Streams) error {
	a := &adoption{Options: o}
	a.management, a.guest = client.WithFieldOwner(management, cluster.FieldOwner), client.WithFieldOwner(guest, cluster.FieldOwner)
	if err := errors.Join(a.readManagement(ctx, key), a.readGuest(ctx)); err != nil {
		return err
	}
	members, err := a.members(ctx)
	if err != nil {
		return err
	}
	a.nameOwners(streams.ErrOut)
	table := printer.NewTable(streams.Out, "MACHINE", "NODE", "TYPE", "ZONE", "EXPIRES AFTER", "ADOPTABLE")
	var chosen []*member
	for _, m := range members {
		outcome := "no: " + m.refusal
		if m.refusal == "" {
			outcome, chosen = "yes", append(chosen, m)
		}
		table.Row(m.Name, m.Status.NodeRef.Name, m.instanceType, m.zone, m.expiry, outcome)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	count := english.Plural(len(chosen), "Machine", "")
	if o.DryRun {
		printer.Printf(streams.Out, "%s would be adopted into NodePool %s (dry run)\n", count, a.pool.Name)
		return nil
	}
	// The last batch has no Machine: it resumes whatever an interrupted run has paused.
	for _, batch := range append(slices.Collect(slices.Chunk(chosen, batchSize)), nil) {
		for _, s := range steps {
			if err := s.take(a, ctx, batch); err != nil {
				return fmt.Errorf("%s: %w; run the command again to continue", s.doing, err)
			}
		}
		if len(batch) > 0 {
			printer.Printf(streams.Out, "%s adopted into NodePool %s\n", english.Plural(len(batch), "Machine", ""), a.pool.Name)
		}
	}
	if len(chosen) == 0 && len(members) > 0 {
		return fmt.Errorf("no Machine of MachineDeployment %s can be adopted", key)
	}
	return nil
}

// nameOwners reports what may write the replicas that the command lowers.
func (a *adoption) nameOwners(to io.Writer) {
	for _, entry := range a.deployment.ManagedFields {
		if entry.FieldsV1 != nil && strings.Contains(string(entry.FieldsV1.Raw), `"f:replicas"`) && entry.Subresource != "status" &&
			entry.Manager != cluster.FieldOwner {
			printer.Printf(to, "%s has set spec.replicas of MachineDeployment %s: if it restores them, as GitOps does, change them there first\n",
				entry.Manager, a.deployment.Name)
		}
	}
	if _, scaled := a.deployment.Annotations[clusterv1.AutoscalerMaxSizeAnnotation]; scaled {
		printer.Printf(to, "MachineDeployment %s is a node group of the Cluster Autoscaler: stop that first\n", a.deployment.Name)
	}
}
