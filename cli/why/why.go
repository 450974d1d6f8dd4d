// SPDX-License-Identifier: Apache-2.0

// Package why is `autonode why`, which reports why a pod gets no node, or why a node stays.
package why

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/cli/cluster"
	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/cli/explain"
	"github.com/autonode-io/autonode/cli/printer"
)

// Options choose the guest, and the control plane where its instance types are.
type Options struct {
	Guest, Management                    cluster.Flags
	HostedCluster, ControlPlaneNamespace string
	Output                               string
}

// NewCommand returns `autonode why`.
func NewCommand() *cobra.Command {
	return command.Group(&cobra.Command{
		Use:   "why",
		Short: "Explain why a pod is pending, or why a node stays",
		Long: `Explain why a pod is pending, or why a node stays.

The commands read the guest cluster and run Karpenter's own scheduler and consolidation on a copy of its objects. They
write nothing. With --management-kubeconfig or --management-context they resolve instance types as Karpenter does, with
the settings of its Deployment. Without the management cluster they use the status of the node classes, and the answer
names what is missing.`,
	}, newPodCommand(), newNodeCommand())
}

func (o *Options) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	o.Guest.Add(cmd, cluster.Guest, &o.Management)
	flags.StringVar(&o.HostedCluster, "hosted-cluster", "", "the guest's HostedCluster, as NAMESPACE/NAME; by default the only one")
	flags.StringVar(&o.ControlPlaneNamespace, "control-plane-namespace", "",
		"namespace of the guest's control plane, instead of --hosted-cluster")
	o.Management.Complete(cmd, &v1beta1.HostedCluster{}, "hosted-cluster")
	o.Management.Complete(cmd, &corev1.Namespace{}, "control-plane-namespace")
	printer.AddFlag(cmd, &o.Output)
}

// PodOptions are those of `autonode why pod`.
type PodOptions struct {
	Options
	Pod, Namespace string
}

func newPodCommand() *cobra.Command {
	var o PodOptions
	cmd := command.New(&cobra.Command{
		Use:   "pod [NAMESPACE/]NAME",
		Short: "Explain why a pod is pending: the reason against each NodePool and instance type",
		Example: `  autonode why pod web-1
  autonode why pod shop/cart-7d9c --management-context management --hosted-cluster clusters/blue`,
		Args: command.ExactlyOne(&o.Pod, "NAME", "the pod to explain, like shop/cart-7d9c"),
	}, &o)
	o.add(cmd)
	cmd.Flags().StringVarP(&o.Namespace, "namespace", "n", "", "namespace of the pod; by default that of the context")
	o.Guest.Complete(cmd, &corev1.Namespace{}, "namespace")
	o.Guest.Complete(cmd, &corev1.Pod{}, "")
	return cmd
}

// Run prints why the pod has no node.
func (o *PodOptions) Run(ctx context.Context, streams command.Streams) error {
	pod, err := o.Guest.Find(ctx, o.Pod, o.Namespace, "a pod, like shop/cart-7d9c", &corev1.Pod{})
	if err != nil {
		return err
	}
	answer, err := o.ExplainPod(ctx, pod)
	if err != nil {
		return err
	}
	return printer.Print(streams.Out, o.Output, answer, func(to io.Writer) error {
		printPodAnswer(to, answer)
		return nil
	}, answer.Pod)
}

// ExplainPod explains why a pod of the guest has no node.
func (o *Options) ExplainPod(ctx context.Context, pod client.ObjectKey) (*explain.PodAnswer, error) {
	simulation, stop, err := o.simulation(ctx)
	if err != nil {
		return nil, err
	}
	defer stop()
	return simulation.Pod(ctx, pod)
}

// NodeOptions are those of `autonode why node`.
type NodeOptions struct {
	Options
	Node string
}

func newNodeCommand() *cobra.Command {
	var o NodeOptions
	cmd := command.New(&cobra.Command{
		Use:     "node NAME",
		Short:   "Explain why Karpenter keeps a node, would remove or replace it, or has removed it",
		Example: `  autonode why node blue-web-x1 --management-context management --hosted-cluster clusters/blue`,
		Args:    command.ExactlyOne(&o.Node, "NAME", "the node or the NodeClaim to explain"),
	}, &o)
	o.add(cmd)
	o.Guest.Complete(cmd, &corev1.Node{}, "")
	return cmd
}

// Run prints why the node stays or goes.
func (o *NodeOptions) Run(ctx context.Context, streams command.Streams) error {
	simulation, stop, err := o.simulation(ctx)
	if err != nil {
		return err
	}
	defer stop()
	answer, err := simulation.Node(ctx, o.Node)
	if err != nil {
		record := o.gone(ctx)
		if record == nil {
			return err
		}
		return printer.Print(streams.Out, o.Output, record, func(to io.Writer) error {
			printGone(to, record)
			return nil
		}, record.Name)
	}
	return printer.Print(streams.Out, o.Output, answer, func(to io.Writer) error {
		printNodeAnswer(to, answer)
		return nil
	}, answer.Node)
}

// Validate implements command.Options.
func (o *Options) Validate() error {
	if !o.Management.Chosen() && (o.HostedCluster != "" || o.ControlPlaneNamespace != "") {
		return errors.New("--hosted-cluster and --control-plane-namespace need the management cluster: " +
			"name it with --management-kubeconfig or --management-context")
	}
	return nil
}

// controlPlane returns the namespace of the guest's control plane, and Karpenter's Deployment there; empty if it isn't known.
func (o *Options) controlPlane(ctx context.Context) (namespace, deployment string, err error) {
	if o.ControlPlaneNamespace != "" && o.HostedCluster == "" {
		return o.ControlPlaneNamespace, "", nil
	}
	management, err := o.Management.Client()
	if err != nil {
		return "", "", err
	}
	hostedClusters := &v1beta1.HostedClusterList{}
	if err := management.List(ctx, hostedClusters); meta.IsNoMatchError(err) {
		return "", "", errors.New("the management cluster has no HostedClusters: AutoNode isn't installed in it; choose another with " +
			"--management-context")
	} else if err != nil {
		return "", "", fmt.Errorf("listing HostedClusters: %w; or name the namespace with --control-plane-namespace", err)
	}
	var names []string
	for i := range hostedClusters.Items {
		name := client.ObjectKeyFromObject(&hostedClusters.Items[i]).String()
		if name == o.HostedCluster || o.HostedCluster == "" && len(hostedClusters.Items) == 1 {
			return cmp.Or(o.ControlPlaneNamespace, hostedClusters.Items[i].ControlPlaneNamespace()), hostedClusters.Items[i].Names().Karpenter, nil
		}
		names = append(names, name)
	}
	slices.Sort(names)
	if o.HostedCluster == "" {
		return "", "", fmt.Errorf("the management cluster has %d HostedClusters; choose one with --hosted-cluster: %s",
			len(names), strings.Join(names, ", "))
	}
	return "", "", fmt.Errorf("the management cluster has no HostedCluster %s; it has %s", o.HostedCluster, strings.Join(names, ", "))
}
