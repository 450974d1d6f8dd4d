// SPDX-License-Identifier: Apache-2.0

// Package cost is `autonode cost`, which shows what the machines of all hosted clusters cost.
package cost

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
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
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/capacity/annotation"
	"github.com/autonode-io/autonode/cli/cluster"
	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/cli/watch"
	"github.com/autonode-io/autonode/fleet/conversion"
	"github.com/autonode-io/autonode/fleet/cost"
)

// errNotServed reports that a cluster lacks a kind.
func errNotServed(kind string) error {
	return fmt.Errorf("this cluster doesn't serve %s, so it isn't a management cluster with AutoNode; choose another with --context or "+
		"--kubeconfig", kind)
}

// Options are those of `autonode cost`.
type Options struct {
	watch.Options
	Management  cluster.Flags
	Account, By string
}

// NewCommand returns `autonode cost`.
func NewCommand() *cobra.Command {
	var o Options
	cmd := command.New(&cobra.Command{
		Use:   "cost",
		Short: "Show the cost of all hosted clusters, and the savings from reservations and commitments",
		Long: `Show the cost of all hosted clusters, and the savings from reservations and commitments.

It reads CapacityAccounts, ControlPlaneComponents and the metadata of Machines in the management cluster. Prices are the list prices at
which Karpenter launched the machines. Commitments are applied as in the prices that Karpenter compares; a bill may differ.

The table in CSV, and focus in JSON and YAML, have the column names of FOCUS: a row for each kind of machine of each NodePool, and
for each unused commitment or reservation.`,
		Example: `  autonode cost
  autonode cost --account production --by type
  autonode cost --by capacity-type -o json
  autonode cost -o csv > cost.csv`,
	}, &o)
	o.Management.Add(cmd, cluster.Management, nil)
	cmd.Flags().StringVar(&o.Account, "account", "", "show one CapacityAccount; by default all machines, also those without an account")
	o.Management.Complete(cmd, &autonodev1alpha1.CapacityAccount{}, "account")
	o.By = "cluster"
	command.AddChoice(cmd, &o.By, "by", "", "what a row is of", groupNames...)
	o.Add(cmd, "csv")
	return cmd
}

// Run prints the costs once, or whenever a watch has reported something until ctx is done.
func (o *Options) Run(ctx context.Context, streams command.Streams) error {
	scheme, err := cluster.Scheme()
	if err != nil {
		return err
	}
	ours, err := labels.Parse(v1alpha1.NodeClaimUIDLabel)
	if err != nil {
		return fmt.Errorf("selecting Karpenter's Machines: %w", err)
	}
	machines := partialOf(machineKind)
	return o.Show(ctx, o.Management.Connect, streams, cache.Options{
		Scheme: scheme, DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{machines: {Label: ours}},
	}, []client.Object{&autonodev1alpha1.CapacityAccount{}, partialOf(componentKind), machines}, o.show)
}

func (o *Options) show(ctx context.Context, reader client.Reader, to io.Writer, _ bool) error {
	costs, err := readCosts(ctx, reader, time.Now())
	if err != nil {
		return err
	}
	if costs, err = cluster.Named(costs, "CapacityAccount", o.Account, func(c *accountCost) string { return c.Account }); err != nil {
		return fmt.Errorf("%w; leave out --account to see all machines", err)
	}
	return printCosts(to, costs, groups[o.By], o.Output)
}

// accountCost is what the machines of an account cost; those of clusters without one have none.
type accountCost struct {
	Account string `json:"account"`
	*cost.Report
	// Problems are the commitments that aren't counted because they are malformed.
	Problems []string `json:"problems,omitempty"`
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

// hostedCluster is what Machines in a namespace belong to.
type hostedCluster struct{ account, name string }

// readCosts lists all that costs are made of, and returns them by account, in the order of the names. Machines of clusters without an
// account come last.
func readCosts(ctx context.Context, reader client.Reader, now time.Time) ([]accountCost, error) {
	var accounts autonodev1alpha1.CapacityAccountList
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
		{"CapacityAccounts", &accounts, []client.ListOption{cached}},
		{"ControlPlaneComponents", &components, []client.ListOption{cached}},
		{"Machines", &machines, []client.ListOption{cached, client.HasLabels{v1alpha1.NodeClaimUIDLabel}}},
	} {
		switch err := reader.List(ctx, list.into, list.opts...); {
		case meta.IsNoMatchError(err):
			return nil, errNotServed(list.what)
		case apierrors.IsForbidden(err):
			return nil, fmt.Errorf("listing %s: %w; ask for permission to list them in all namespaces of the management cluster", list.what, err)
		case err != nil:
			return nil, fmt.Errorf("listing %s: %w", list.what, err)
		}
	}
	clusters := clustersOf(accounts.Items, components.Items)
	byAccount := map[string][]cost.Machines{}
	for i := range machines.Items {
		machine := &machines.Items[i]
		if !v1alpha1.MadeForNodeClaim(machine) {
			continue
		}
		owner, ok := clusters[client.ObjectKey{Namespace: machine.Namespace, Name: machine.Labels[clusterv1.ClusterNameLabel]}]
		if !ok {
			owner, ok = clusters[client.ObjectKey{Namespace: machine.Namespace}]
		}
		if !ok {
			owner.name = machine.Namespace + "/" + machine.Labels[clusterv1.ClusterNameLabel]
		}
		byAccount[owner.account] = append(byAccount[owner.account], cost.Machines{
			Cluster: owner.name, NodePool: machine.Labels[karpv1.NodePoolLabelKey], Priced: annotation.MachineOf(machine), Count: 1,
		})
	}
	var costs []accountCost
	slices.SortFunc(accounts.Items, func(a, b autonodev1alpha1.CapacityAccount) int { return cmp.Compare(a.Name, b.Name) })
	for i := range accounts.Items {
		costs = append(costs, costOf(ctx, reader, &accounts.Items[i], byAccount[accounts.Items[i].Name], now))
	}
	if rest := byAccount[""]; len(rest) > 0 {
		costs = append(costs, accountCost{Report: cost.Of(rest, nil, nil)})
	}
	return costs, nil
}

// clustersOf returns the hosted cluster of each control-plane namespace, or of each Cluster in a shared one. A cluster belongs to the
// account whose record has it.
func clustersOf(accounts []autonodev1alpha1.CapacityAccount, components []metav1.PartialObjectMetadata) map[client.ObjectKey]hostedCluster {
	clusters := map[client.ObjectKey]hostedCluster{}
	for i := range components {
		names, ok := v1beta1.NamesOf(&components[i])
		if label := components[i].Labels; ok && label[v1beta1.HostedClusterLabel] != "" {
			clusters[client.ObjectKey{Namespace: components[i].Namespace, Name: names.Cluster}] = hostedCluster{
				name: label[v1beta1.HostedClusterNamespaceLabel] + "/" + label[v1beta1.HostedClusterLabel],
			}
		}
	}
	for i := range accounts {
		for _, grant := range accounts[i].Status.Clusters {
			if grant.Released == nil {
				key := client.ObjectKey{Namespace: grant.ControlPlaneNamespace, Name: grant.Cluster}
				clusters[key] = hostedCluster{accounts[i].Name, grant.Namespace + "/" + grant.Name}
			}
		}
	}
	return clusters
}

// costOf applies the commitments of an account that are in their term. A plan whose rates can't be read covers types with a rate in the
// account.
func costOf(
	ctx context.Context, reader client.Reader, account *autonodev1alpha1.CapacityAccount, machines []cost.Machines, now time.Time,
) accountCost {
	report := accountCost{Account: account.Name}
	problem := func(field string, err any, effect string) {
		report.Problems = append(report.Problems, fmt.Sprintf("spec.%s: %s; %s", field, err, effect))
	}
	rates := conversion.Rates{}
	for i := range account.Spec.Commitments {
		c := &account.Spec.Commitments[i]
		if c.RatesFrom == nil {
			continue
		}
		var err error
		if rates[c.Name], err = conversion.RatesFrom(ctx, reader, c.RatesFrom); err != nil {
			problem(fmt.Sprintf("commitments[%s].ratesFrom", c.Name), err, "its types without a rate in the account aren't covered")
		}
	}
	commitments, unusable := conversion.CommitmentsAt(&account.Spec, rates, now)
	for _, entry := range unusable {
		problem(entry.Field, entry.Message, "it isn't counted")
	}
	report.Report = cost.Of(machines, commitments, conversion.ReservationsAt(&account.Spec, now))
	return report
}
