// SPDX-License-Identifier: Apache-2.0

// Package adopt is `autonode adopt`, which makes running Machines of a MachineDeployment Karpenter's nodes.
package adopt

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/cli/cluster"
	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/cli/printer"
)

// batchSize limits the Machines that a pause of Karpenter is for.
const batchSize = 20

// Options are those of `autonode adopt machinedeployment`.
type Options struct {
	Management, Guest         cluster.Flags
	Name, Namespace, NodePool string
	ExpireAfter               string
	Machines                  int
	DryRun, Undo              bool
}

// NewCommand returns `autonode adopt`.
func NewCommand() *cobra.Command {
	var o Options
	cmd := command.New(&cobra.Command{
		Use:   "machinedeployment [NAMESPACE/]NAME",
		Short: "Make running Machines of a MachineDeployment Karpenter's nodes",
		Long: `Make running Machines of a MachineDeployment Karpenter's nodes. No machine is created or deleted, and no pod restarts.

In batches of 20 the command removes Machines from their MachineSet, lowers the MachineDeployment's replicas by as many, pauses
Karpenter for at most five minutes, and creates a NodeClaim for each Machine. It lists every Machine first, with the reason if it
can't be adopted. After an interruption, run it again: it continues. The nodes have the annotation karpenter.sh/do-not-disrupt until
you release them: see docs/platform/adopt.md.`,
		Example: `  autonode adopt machinedeployment clusters-blue/workers --guest-kubeconfig blue.kubeconfig --dry-run
  autonode adopt machinedeployment workers -n clusters-blue --guest-kubeconfig blue.kubeconfig --machines 5
  autonode adopt machinedeployment workers -n clusters-blue --guest-kubeconfig blue.kubeconfig --undo`,
		Args: command.ExactlyOne(&o.Name, "NAME", "the MachineDeployment, like clusters-blue/workers"),
	}, &o)
	o.Management.Add(cmd, cluster.Management, &o.Guest)
	flags := cmd.Flags()
	flags.StringVarP(&o.Namespace, "namespace", "n", "", "namespace of the MachineDeployment; by default that of the context")
	flags.StringVar(&o.NodePool, "nodepool", "", "NodePool of the nodes; by default the only one of the guest")
	flags.StringVar(&o.ExpireAfter, "expire-after", "",
		"expireAfter of the NodeClaims, such as 720h or Never; by default the NodePool's, later by an even share for each")
	flags.IntVar(&o.Machines, "machines", 0, "adopt at most so many Machines; 0 for all")
	flags.BoolVar(&o.DryRun, "dry-run", false, "list the Machines, and write nothing")
	flags.BoolVar(&o.Undo, "undo", false, "return Machines without a NodeClaim that an interrupted run has left to the MachineDeployment")
	cmd.MarkFlagsMutuallyExclusive("dry-run", "undo")
	o.Management.Complete(cmd, &clusterv1.MachineDeployment{}, "")
	return command.Group(&cobra.Command{Use: "adopt", Short: "Make running Machines Karpenter's nodes"}, cmd)
}

// Validate checks flags.
func (o *Options) Validate() error {
	if o.Machines < 0 {
		return fmt.Errorf("--machines %d: must be 0 or more", o.Machines)
	}
	if _, err := parseExpiry(o.ExpireAfter); err != nil {
		return fmt.Errorf("--expire-after %q: must be Never or a duration, such as 720h", o.ExpireAfter)
	}
	if !o.Guest.Chosen() {
		return errors.New("name the guest with --guest-kubeconfig or --guest-context")
	}
	return nil
}

func parseExpiry(text string) (expiry karpv1.NillableDuration, err error) {
	quoted, err := json.Marshal(cmp.Or(text, karpv1.Never))
	if err != nil {
		return expiry, err
	}
	err = json.Unmarshal(quoted, &expiry)
	if err == nil && expiry.Duration != nil && *expiry.Duration <= 0 {
		err = errors.New("it has passed")
	}
	return expiry, err
}

// Run adopts Machines.
func (o *Options) Run(ctx context.Context, streams command.Streams) error {
	management, err := o.Management.Client()
	if err != nil {
		return err
	}
	guest, err := o.Guest.Client()
	if err != nil {
		return err
	}
	key, err := o.Management.Find(ctx, o.Name, o.Namespace, "a MachineDeployment, like clusters-blue/workers", &clusterv1.MachineDeployment{})
	if err != nil {
		return err
	}
	return o.Adopt(ctx, management, guest, key, streams)
}

// Adopt adopts Machines of a MachineDeployment. After an error, another call continues.
func (o *Options) Adopt(ctx context.Context, management, guest client.Client, deployment client.ObjectKey, streams command.Streams) error {
	a := &adoption{
		Options: o, management: client.WithFieldOwner(management, cluster.FieldOwner), guest: client.WithFieldOwner(guest, cluster.FieldOwner),
		key: deployment, out: streams.Out,
	}
	if err := a.read(ctx); err != nil {
		return err
	}
	unfinished := a.unfinished()
	if o.Undo {
		unbound := slices.DeleteFunc(unfinished, func(m *member) bool { return m.Labels[v1alpha1.NodeClaimUIDLabel] != "" })
		return errors.Join(a.inBatches(ctx, backward, unbound), a.resumeKarpenter(ctx, nil))
	}
	candidates, err := a.candidates(ctx)
	if err != nil {
		return err
	}
	a.nameOwners(streams.ErrOut)
	if err := a.print(unfinished, candidates); err != nil {
		return err
	}
	var chosen []*member
	for _, c := range candidates {
		if c.refusal == "" {
			chosen = append(chosen, c)
		}
	}
	total := english.Plural(len(chosen)+len(unfinished), "Machine", "")
	switch {
	case o.DryRun:
		printer.Printf(a.out, "%s would be adopted into NodePool %s (dry run)\n", total, a.pool.Name)
		return nil
	case len(unfinished) == 0:
		// An interrupted run may have left it paused.
		if err := a.resumeKarpenter(ctx, nil); err != nil {
			return err
		}
	}
	if len(chosen)+len(unfinished) == 0 && len(candidates) > 0 {
		return fmt.Errorf("no Machine of MachineDeployment %s can be adopted", a.key)
	}
	if err := a.inBatches(ctx, forward, unfinished, chosen); err != nil {
		return fmt.Errorf("%w; run the command again to continue", err)
	}
	printer.Printf(a.out, "%s adopted into NodePool %s\n", total, a.pool.Name)
	return nil
}

// inBatches takes the steps for each batch. Machines of an interrupted run are a batch of their own.
func (a *adoption) inBatches(ctx context.Context, steps []step, groups ...[]*member) error {
	for _, group := range groups {
		for batch := range slices.Chunk(group, batchSize) {
			for _, s := range steps {
				if err := s.take(a, ctx, batch); err != nil {
					return fmt.Errorf("%s: %w", s.doing, err)
				}
			}
		}
	}
	return nil
}

func (a *adoption) print(unfinished, candidates []*member) error {
	table := printer.NewTable(a.out, "MACHINE", "NODE", "TYPE", "ZONE", "EXPIRES AFTER", "ADOPTABLE")
	for _, m := range slices.Concat(unfinished, candidates) {
		outcome := "yes"
		switch {
		case m.Record.Step != "":
			outcome = "continues at " + m.Record.Step
		case m.refusal != "":
			outcome = "no: " + m.refusal
		}
		table.Row(m.Name, m.Status.NodeRef.Name, m.Record.instanceType(), m.Record.zone(), m.Record.ExpireAfter, outcome)
	}
	return table.Flush()
}
