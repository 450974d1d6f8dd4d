// SPDX-License-Identifier: Apache-2.0

// Package adopt is `autonode adopt`, which makes running Machines of a MachineDeployment Karpenter's nodes.
package adopt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/rand"
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

The command pauses Karpenter for at most five minutes for each 20 Machines. After an interruption, run it again: it continues.`,
		Example: `  autonode adopt machinedeployment clusters-blue/workers --guest-kubeconfig blue.kubeconfig --dry-run
  autonode adopt machinedeployment workers -n clusters-blue --guest-kubeconfig blue.kubeconfig --machines 5`,
		Args: command.ExactlyOne(&o.Name, "NAME", "the MachineDeployment, like clusters-blue/workers"),
	}, &o)
	o.Management.Add(cmd, cluster.Management, &o.Guest)
	flags := cmd.Flags()
	flags.StringVarP(&o.Namespace, "namespace", "n", "", "namespace of the MachineDeployment; by default that of the context")
	flags.StringVar(&o.NodePool, "nodepool", "", "NodePool of the nodes; by default the guest's only one")
	flags.StringVar(&o.ExpireAfter, "expire-after", "", "when nodes expire, such as 720h or Never; by default the NodePool's, spread")
	flags.IntVar(&o.Machines, "machines", 0, "adopt at most so many Machines; 0 for all")
	flags.BoolVar(&o.DryRun, "dry-run", false, "list the Machines, and write nothing")
	o.Management.Complete(cmd, &clusterv1.MachineDeployment{}, "")
	return command.Group(&cobra.Command{Use: "adopt", Short: "Make running Machines Karpenter's nodes"}, cmd)
}

// Run connects to both clusters.
func (o *Options) Run(ctx context.Context, streams command.Streams) error {
	if !o.Guest.Chosen() {
		return errors.New("name the guest with --guest-kubeconfig or --guest-context")
	}
	key, err := o.Management.Find(ctx, o.Name, o.Namespace, "a MachineDeployment, like clusters-blue/workers", &clusterv1.MachineDeployment{})
	if err != nil {
		return err
	}
	management, err := o.Management.Client()
	guest, guestErr := o.Guest.Client()
	if err := cmp.Or(err, guestErr); err != nil {
		return err
	}
	return o.Adopt(ctx, management, guest, key, streams)
}

// Adopt adopts Machines of a MachineDeployment. After an error, another call continues.
func (o *Options) Adopt(ctx context.Context, management, guest client.Client, key client.ObjectKey, streams command.Streams) error {
	a := &adoption{Options: o, id: pausedBy + rand.String(8)}
	a.management, a.guest = client.WithFieldOwner(management, cluster.FieldOwner), client.WithFieldOwner(guest, cluster.FieldOwner)
	if err := a.readManagement(ctx, key); err != nil {
		return err
	}
	if err := a.readGuest(ctx); err != nil {
		return err
	}
	members, err := a.members(ctx)
	if err != nil {
		return err
	}
	for _, entry := range a.deployment.ManagedFields {
		if fields := entry.FieldsV1; fields != nil && strings.Contains(fields.String(), `"f:replicas"`) && entry.Subresource != "status" &&
			entry.Manager != cluster.FieldOwner {
			printer.Printf(streams.ErrOut, "%s owns spec.replicas of MachineDeployment %s: if it restores it, as GitOps does, "+
				"change it there first\n", entry.Manager, key)
		}
	}
	if _, scaled := a.deployment.Annotations[clusterv1.AutoscalerMaxSizeAnnotation]; scaled {
		printer.Printf(streams.ErrOut, "MachineDeployment %s is a node group of the Cluster Autoscaler: stop that first\n", key)
	}
	table := printer.NewTable(streams.Out, "MACHINE", "NODE", "TYPE", "ZONE", "EXPIRES AFTER", "ADOPTABLE")
	var chosen []*member
	for _, m := range members {
		outcome := "no: " + m.refusal
		if m.refusal == "" {
			outcome, chosen = "yes", append(chosen, m)
		}
		instanceType, zone := m.offering[corev1.LabelInstanceTypeStable], m.offering[corev1.LabelTopologyZone]
		table.Row(m.Name, m.Status.NodeRef.Name, instanceType, zone, m.expiry, outcome)
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
	}
	printer.Printf(streams.Out, "%s adopted into NodePool %s\n", count, a.pool.Name)
	if len(chosen) == 0 && len(members) > 0 {
		return fmt.Errorf("no Machine of MachineDeployment %s can be adopted", key)
	}
	return nil
}
