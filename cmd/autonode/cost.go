// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	accounts "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/capacity/cost"
)

// errNotServed says that a cluster lacks a kind.
func errNotServed(kind string) error {
	return fmt.Errorf("this cluster doesn't serve %s, so it isn't a management cluster with AutoNode; choose another with --context or --kubeconfig", kind)
}

// costOutputs are the values of --output.
var costOutputs = []string{"table", "json", "yaml"}

func newCostCommand() *cobra.Command {
	var management managementFlags
	var account, by, output string
	var watch bool
	cmd := &cobra.Command{
		Use:   "cost",
		Short: "Show what the machines of all hosted clusters cost, and what reservations and commitments save",
		Long: `Show what the machines of all hosted clusters cost, and what reservations and commitments save.

It reads CapacityAccounts, ControlPlaneComponents and the metadata of Machines in the management cluster. Prices are the list prices at
which Karpenter launched the machines. What commitments cover is computed as for the prices that Karpenter compares; a bill may differ.`,
		Example: `  autonode cost
  autonode cost --account production --by type
  autonode cost --by capacity-type -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			group, ok := costGroups[by]
			switch {
			case !ok:
				return fmt.Errorf("--by %q: want one of %s", by, strings.Join(costGroupNames, ", "))
			case !slices.Contains(costOutputs, output):
				return fmt.Errorf("--output: %q is none of %s", output, strings.Join(costOutputs, ", "))
			case watch && output != "table":
				return fmt.Errorf("--watch shows tables; leave out --output %s", output)
			}
			show := func(ctx context.Context, reader client.Reader, to io.Writer) error {
				costs, err := readCosts(ctx, reader, time.Now())
				if err != nil {
					return err
				}
				if costs, err = ofAccount(costs, account); err != nil {
					return err
				}
				return printCosts(to, costs, group, output)
			}
			reader, err := management.client()
			if err != nil {
				return err
			}
			if !watch {
				return show(cmd.Context(), reader, cmd.OutOrStdout())
			}
			// A watch would try again and again what isn't allowed.
			if err := show(cmd.Context(), reader, io.Discard); err != nil {
				return err
			}
			return watchCosts(cmd.Context(), &management, cmd.OutOrStdout(), show)
		},
	}
	flags := cmd.Flags()
	management.add(flags)
	flags.StringVar(&account, "account", "", "show one CapacityAccount; without it all machines, also of clusters without an account")
	flags.StringVar(&by, "by", "cluster", "what a row is of: "+strings.Join(costGroupNames, ", "))
	flags.StringVarP(&output, "output", "o", "table", "how to print it: "+strings.Join(costOutputs, ", "))
	flags.BoolVarP(&watch, "watch", "w", false, "show the table again whenever something changes, until interrupted")
	registerCompletion(cmd, "by", costGroupNames...)
	registerCompletion(cmd, "output", costOutputs...)
	return cmd
}

// accountCost is what the machines of an account cost; those of clusters without one have no name.
type accountCost struct {
	name string
	*cost.Report
	// problems are the commitments that aren't counted because they are malformed.
	problems []string
}

var (
	machineKind   = clusterv1.GroupVersion.WithKind("Machine")
	componentKind = v1beta1.GroupVersion.WithKind("ControlPlaneComponent")
)

func partialOf(kind schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kind)
	return object
}

// costCluster is what Machines in a namespace belong to.
type costCluster struct{ account, name string }

// readCosts lists all that costs are made of, and returns them by account, in the order of the names. Machines of clusters without an
// account come last.
func readCosts(ctx context.Context, reader client.Reader, now time.Time) ([]accountCost, error) {
	var found accounts.CapacityAccountList
	var components, machines metav1.PartialObjectMetadataList
	components.SetGroupVersionKind(componentKind.GroupVersion().WithKind("ControlPlaneComponentList"))
	machines.SetGroupVersionKind(machineKind.GroupVersion().WithKind("MachineList"))
	// What the API server has in its cache is new enough, and costs etcd nothing.
	cached := &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}}
	for _, list := range []struct {
		what string
		into client.ObjectList
		opts []client.ListOption
	}{
		{"CapacityAccounts", &found, []client.ListOption{cached}},
		{"ControlPlaneComponents", &components, []client.ListOption{cached}},
		{"Machines", &machines, []client.ListOption{cached, client.HasLabels{v1alpha1.NodeClaimUIDLabel}}},
	} {
		switch err := reader.List(ctx, list.into, list.opts...); {
		case meta.IsNoMatchError(err):
			return nil, errNotServed(list.what)
		case apierrors.IsForbidden(err):
			return nil, fmt.Errorf("listing %s: %w; ask for the right to list them in all namespaces of the management cluster", list.what, err)
		case err != nil:
			return nil, fmt.Errorf("listing %s: %w", list.what, err)
		}
	}
	clusters := clustersOf(found.Items, components.Items)
	byAccount := map[string][]cost.Machines{}
	for i := range machines.Items {
		machine := &machines.Items[i]
		if !v1alpha1.MadeForNodeClaim(machine) {
			continue
		}
		of, ok := clusters[costPlace{machine.Namespace, machine.Labels[clusterv1.ClusterNameLabel]}]
		if !ok {
			of, ok = clusters[costPlace{namespace: machine.Namespace}]
		}
		if !ok {
			of.name = machine.Namespace + "/" + machine.Labels[clusterv1.ClusterNameLabel]
		}
		size, prices := accounts.MachineOf(machine)
		byAccount[of.account] = append(byAccount[of.account], cost.Machines{
			Key:  cost.Key{Cluster: of.name, NodePool: machine.Labels[karpenterv1.NodePoolLabelKey], Offering: size.Offering},
			List: prices.List, OnDemand: prices.OnDemand, Count: 1,
		})
	}
	var costs []accountCost
	slices.SortFunc(found.Items, func(a, b accounts.CapacityAccount) int { return cmp.Compare(a.Name, b.Name) })
	for i := range found.Items {
		costs = append(costs, costOf(&found.Items[i], byAccount[found.Items[i].Name], now))
	}
	if rest := byAccount[""]; len(rest) > 0 {
		costs = append(costs, accountCost{Report: cost.Of(rest, nil, nil)})
	}
	return costs, nil
}

// costPlace is a control-plane namespace, and the Cluster in it where HostedClusters share the namespace.
type costPlace struct{ namespace, cluster string }

// clustersOf returns the hosted cluster of each control-plane namespace, or of each Cluster in a shared one. A cluster belongs to the account whose record has it.
func clustersOf(found []accounts.CapacityAccount, components []metav1.PartialObjectMetadata) map[costPlace]costCluster {
	clusters := map[costPlace]costCluster{}
	for i := range components {
		names, ok := v1beta1.NamesOf(&components[i])
		if of := components[i].Labels; ok && of[v1beta1.HostedClusterLabel] != "" {
			clusters[costPlace{components[i].Namespace, names.Cluster}] = costCluster{name: of[v1beta1.HostedClusterNamespaceLabel] + "/" + of[v1beta1.HostedClusterLabel]}
		}
	}
	for i := range found {
		for _, grant := range found[i].Status.Clusters {
			if grant.Released == nil {
				clusters[costPlace{grant.ControlPlaneNamespace, grant.Cluster}] = costCluster{found[i].Name, grant.Namespace + "/" + grant.Name}
			}
		}
	}
	return clusters
}

// costOf applies the commitments of an account that are in their term.
func costOf(account *accounts.CapacityAccount, machines []cost.Machines, now time.Time) accountCost {
	commitments, problems := account.Spec.CommitmentsAt(now)
	of := accountCost{name: account.Name, Report: cost.Of(machines, commitments, account.Spec.ReservationsAt(now))}
	for _, problem := range problems {
		of.problems = append(of.problems, fmt.Sprintf("spec.%s: %s; it isn't counted", problem.Field, problem.Message))
	}
	return of
}

// ofAccount leaves out the other accounts.
func ofAccount(costs []accountCost, name string) ([]accountCost, error) {
	if name == "" {
		return costs, nil
	}
	var names []string
	for i := range costs {
		if costs[i].name == name {
			return costs[i : i+1], nil
		}
		if costs[i].name != "" {
			names = append(names, costs[i].name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("there is no CapacityAccount %q, nor any other; leave out --account to see the list prices of all machines", name)
	}
	return nil, fmt.Errorf("there is no CapacityAccount %q; there are %s", name, strings.Join(names, ", "))
}

// watchCosts prints a table whenever a watch has reported something, until ctx is done.
func watchCosts(ctx context.Context, management *managementFlags, to io.Writer, show func(context.Context, client.Reader, io.Writer) error) error {
	config, err := management.config()
	if err != nil {
		return err
	}
	scheme, err := managementScheme()
	if err != nil {
		return err
	}
	ours, err := labels.Parse(v1alpha1.NodeClaimUIDLabel)
	if err != nil {
		return fmt.Errorf("selecting Karpenter's Machines: %w", err)
	}
	machines := partialOf(machineKind)
	return watchTable(ctx, config, to, watched{
		options: cache.Options{
			Scheme: scheme, DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{machines: {Label: ours}},
		},
		objects: []client.Object{&accounts.CapacityAccount{}, partialOf(componentKind), machines},
		absent:  errNotServed("CapacityAccounts"),
	}, show)
}
