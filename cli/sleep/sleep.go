// SPDX-License-Identifier: Apache-2.0

// Package sleep is `autonode sleep` and `autonode wake`, which put a cluster's nodes to sleep and wake it.
package sleep

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/cli/cluster"
	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/cli/printer"
)

// Options are those of `autonode sleep` and `autonode wake`.
type Options struct {
	Management      cluster.Flags
	Name, Namespace string
	For             time.Duration
	// set is the annotation that the command writes, unset the one that it removes, and state what the cluster is by the former.
	set, unset, state string
}

// NewCommands returns both commands.
func NewCommands() []*cobra.Command {
	return []*cobra.Command{
		newCommand(&Options{set: v1beta1.SleepUntilAnnotation, unset: v1beta1.WakeUntilAnnotation, state: "asleep"}, "sleep",
			"Remove a cluster's nodes for a while", "Karpenter's nodes drain, then Karpenter has no replica until the time is over."),
		newCommand(&Options{set: v1beta1.WakeUntilAnnotation, unset: v1beta1.SleepUntilAnnotation, state: "awake"}, "wake",
			"Wake a cluster that sleeps", "Karpenter comes back, whatever the schedules in spec.autoNode.sleep say until the time is over."),
	}
}

func newCommand(o *Options, name, short, long string) *cobra.Command {
	cmd := command.New(&cobra.Command{
		Use: name + " [NAMESPACE/]NAME", Short: short, Args: command.ExactlyOne(&o.Name, "a HostedCluster", "the HostedCluster"),
		Long: short + ".\n\nThe command annotates the HostedCluster. " + long, Example: "  autonode " + name + " clusters/blue --for 2h",
	}, o)
	o.Management.Add(cmd, cluster.Management, nil)
	cmd.Flags().StringVarP(&o.Namespace, "namespace", "n", "", "namespace of the HostedCluster; by default that of the context")
	cmd.Flags().DurationVar(&o.For, "for", 12*time.Hour, "for how long")
	o.Management.Complete(cmd, &v1beta1.HostedCluster{}, "")
	return cmd
}

// Run annotates the HostedCluster.
func (o *Options) Run(ctx context.Context, streams command.Streams) error {
	hostedCluster := &v1beta1.HostedCluster{}
	key, err := o.Management.Find(ctx, o.Name, o.Namespace, "a HostedCluster, like clusters/blue", hostedCluster)
	if err != nil {
		return err
	}
	management, err := o.Management.Client()
	if err != nil {
		return err
	}
	hostedCluster.Namespace, hostedCluster.Name = key.Namespace, key.Name
	until := time.Now().Add(o.For).UTC().Format(time.RFC3339)
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q,%q:null}}}`, o.set, until, o.unset)
	if err := management.Patch(ctx, hostedCluster, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("annotating HostedCluster %s: %w", key, err)
	}
	printer.Printf(streams.Out, "hostedcluster.autonode.io/%s is to be %s until %s\n", key.Name, o.state, until)
	return nil
}
