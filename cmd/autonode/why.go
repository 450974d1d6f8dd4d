// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/karpenter"
	"github.com/autonode-io/autonode/karpenter/explain"
)

// whyFlags choose the guest, and the control plane where its instance types are.
type whyFlags struct {
	guest                        clusterFlags
	management                   clusterFlags
	hostedCluster, controlPlanes string
	output                       string
}

var whyOutputs = []string{"text", "json", "yaml"}

// newWhyCommand returns `autonode why`.
func newWhyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "why",
		Short: "Say why a pod gets no node, or why a node stays",
		Long: `Say why a pod gets no node, or why a node stays.

The commands read the guest cluster and run Karpenter's own scheduler and consolidation on what they have read. They
write nothing. Instance types are in the management cluster: with --management-kubeconfig or --management-context they
are resolved as Karpenter resolves them, with the settings of its Deployment. Without, they are what the status of the
node classes says, and the answer names what is missing.`,
		Args: subcommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newWhyPodCommand(), newWhyNodeCommand())
	return cmd
}

func (f *whyFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	f.guest.add(flags, "the guest cluster")
	flags.StringVar(&f.management.kubeconfig, "management-kubeconfig", "",
		"kubeconfig of the management cluster; without it and --management-context that cluster isn't read")
	flags.StringVar(&f.management.context, "management-context", "",
		"context of the management cluster, in --management-kubeconfig or the default kubeconfig")
	flags.StringVar(&f.hostedCluster, "hosted-cluster", "", "NAMESPACE/NAME of the guest's HostedCluster; without it the only one")
	flags.StringVar(&f.controlPlanes, "control-plane-namespace", "", "namespace of the guest's control plane, instead of --hosted-cluster")
	flags.StringVarP(&f.output, "output", "o", "text", "output format: "+strings.Join(whyOutputs, ", "))
	registerCompletion(cmd, "output", whyOutputs...)
}

func newWhyPodCommand() *cobra.Command {
	var flags whyFlags
	var namespace string
	cmd := &cobra.Command{
		Use:   "pod [NAMESPACE/]NAME",
		Short: "Say which NodePools and instance types were considered for a pod, and why each was refused",
		Example: `  autonode why pod web-1
  autonode why pod shop/cart-7d9c --management-context management --hosted-cluster clusters/blue`,
		Args: oneName("the pod to explain, like shop/cart-7d9c"),
		RunE: func(cmd *cobra.Command, args []string) error {
			key := client.ObjectKey{Namespace: namespace, Name: args[0]}
			if before, name, found := strings.Cut(args[0], "/"); found {
				key = client.ObjectKey{Namespace: before, Name: name}
			}
			if key.Namespace == "" {
				var err error
				if key.Namespace, err = flags.guest.namespace(); err != nil {
					return err
				}
			}
			return flags.explain(cmd, func(ctx context.Context, simulation *explain.Simulation) (any, func(io.Writer), error) {
				answer, err := simulation.Pod(ctx, key)
				return answer, func(to io.Writer) { printPodAnswer(to, answer) }, err
			})
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "namespace of the pod; without it that of the context")
	return cmd
}

func newWhyNodeCommand() *cobra.Command {
	var flags whyFlags
	cmd := &cobra.Command{
		Use:     "node NAME",
		Short:   "Say why Karpenter doesn't remove or replace a node, or that it would",
		Example: `  autonode why node blue-web-x1 --management-context management --hosted-cluster clusters/blue`,
		Args:    oneName("the node or the NodeClaim to explain"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return flags.explain(cmd, func(ctx context.Context, simulation *explain.Simulation) (any, func(io.Writer), error) {
				answer, err := simulation.Node(ctx, args[0])
				return answer, func(to io.Writer) { printNodeAnswer(to, answer) }, err
			})
		},
	}
	flags.add(cmd)
	return cmd
}

// oneName accepts one argument.
func oneName(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 || args[0] == "" {
			return fmt.Errorf("name %s; see `%s --help`", what, cmd.CommandPath())
		}
		return nil
	}
}

// explain reads the clusters, and prints one answer.
func (f *whyFlags) explain(cmd *cobra.Command, ask func(context.Context, *explain.Simulation) (answer any, text func(io.Writer), err error)) error {
	if !slices.Contains(whyOutputs, f.output) {
		return fmt.Errorf("--output: %q is none of %s", f.output, strings.Join(whyOutputs, ", "))
	}
	// What Karpenter would log is in the answer.
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	ctx := cmd.Context()
	config := karpenter.ExplainConfig{Clock: clock.RealClock{}}
	var err error
	if config.Guest, err = f.guest.config(); err != nil {
		return err
	}
	if f.management.kubeconfig != "" || f.management.context != "" {
		if config.Management, err = f.management.config(); err != nil {
			return err
		}
		if config.Namespace, config.Deployment, err = f.controlPlane(ctx); err != nil {
			return err
		}
	} else if f.hostedCluster != "" || f.controlPlanes != "" {
		return errors.New("--hosted-cluster and --control-plane-namespace are of the management cluster: " +
			"name it with --management-kubeconfig or --management-context")
	}
	simulation, err := karpenter.Explain(ctx, config)
	if err != nil {
		return err
	}
	answer, text, err := ask(ctx, simulation)
	if err != nil {
		return err
	}
	if f.output != "text" {
		return encode(cmd.OutOrStdout(), f.output, answer)
	}
	text(cmd.OutOrStdout())
	return nil
}

// controlPlane returns the namespace of the guest's control plane, and Karpenter's Deployment there; empty if it isn't known.
func (f *whyFlags) controlPlane(ctx context.Context) (namespace, deployment string, err error) {
	if f.controlPlanes != "" && f.hostedCluster == "" {
		return f.controlPlanes, "", nil
	}
	management, err := (&managementFlags{f.management}).client()
	if err != nil {
		return "", "", err
	}
	hostedClusters := &v1beta1.HostedClusterList{}
	if err := management.List(ctx, hostedClusters); meta.IsNoMatchError(err) {
		return "", "", errors.New("the management cluster has no HostedClusters: AutoNode isn't installed in it; choose another with --management-context")
	} else if err != nil {
		return "", "", fmt.Errorf("listing HostedClusters: %w; or name the namespace with --control-plane-namespace", err)
	}
	var names []string
	for i := range hostedClusters.Items {
		name := client.ObjectKeyFromObject(&hostedClusters.Items[i]).String()
		if name == f.hostedCluster || f.hostedCluster == "" && len(hostedClusters.Items) == 1 {
			return cmp.Or(f.controlPlanes, hostedClusters.Items[i].ControlPlaneNamespace()), hostedClusters.Items[i].Names().Karpenter, nil
		}
		names = append(names, name)
	}
	slices.Sort(names)
	if f.hostedCluster == "" {
		return "", "", fmt.Errorf("the management cluster has %d HostedClusters; choose one with --hosted-cluster: %s",
			len(names), strings.Join(names, ", "))
	}
	return "", "", fmt.Errorf("the management cluster has no HostedCluster %s; it has %s", f.hostedCluster, strings.Join(names, ", "))
}

// printPodAnswer prints the sentence first, and what led to it after.
func printPodAnswer(to io.Writer, answer *explain.PodAnswer) {
	printLine(to, answer.Summary)
	printList(to, "Waits for", answer.Waits)
	for i := range answer.NodePools {
		nodePool := &answer.NodePools[i]
		decision := "no"
		if nodePool.Fits {
			decision = "yes"
		}
		printf(to, "\nNodePool %s: %s, %s\n", nodePool.Name, decision, nodePool.Reason)
		for _, accepted := range nodePool.Accepted {
			printf(to, "  + %s  zone %s, %s, $%.3f an hour\n", accepted.InstanceType, accepted.Zone, accepted.CapacityType, accepted.Price)
		}
		if more := nodePool.AcceptedCount - len(nodePool.Accepted); more > 0 {
			printf(to, "  + %d more\n", more)
		}
		printRefusals(to, nodePool.Refused)
	}
	if len(answer.Nodes) > 0 {
		fmt.Fprint(to, "\nNodes that exist:\n")
		printRefusals(to, answer.Nodes)
	}
	printMissing(to, answer.Missing)
}

func printNodeAnswer(to io.Writer, answer *explain.NodeAnswer) {
	printLine(to, answer.Summary)
	printList(to, "Kept by", answer.Blocking)
	if len(answer.Methods) > 0 {
		fmt.Fprint(to, "\nWhat Karpenter tries, in this order:\n")
	}
	for _, method := range answer.Methods {
		decision := "no"
		if method.Disrupts {
			decision = "yes"
		}
		printf(to, "  %s: %s, %s\n", method.Name, decision, method.Reason)
	}
	printList(to, "Known of it", answer.Facts)
	printMissing(to, answer.Missing)
}

func printRefusals(to io.Writer, refusals []explain.Refusal) {
	for _, refusal := range refusals {
		names := strings.Join(refusal.Names, ", ")
		if more := refusal.Count - len(refusal.Names); more > 0 {
			names += fmt.Sprintf(" and %d more", more)
		}
		printf(to, "  - %d: %s (%s)\n", refusal.Count, refusal.Reason, names)
	}
}

func printList(to io.Writer, title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	printf(to, "\n%s:\n", title)
	for _, line := range lines {
		printf(to, "  %s\n", line)
	}
}

func printMissing(to io.Writer, missing []string) {
	printList(to, "Not known", missing)
}
