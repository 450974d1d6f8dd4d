// SPDX-License-Identifier: Apache-2.0

// Package nodes is `autonode nodes`, which shows what nodes cost, how full they are, and why each stays or goes.
package nodes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/sets"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/cli/cluster"
	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/cli/printer"
	"github.com/autonode-io/autonode/cli/watch"
)

// aboutNodeClaims selects the events that say why a node stays. Karpenter sends each of a Node and of its NodeClaim.
var aboutNodeClaims = fields.OneTermEqualSelector("involvedObject.kind", "NodeClaim")

// orders are the values of --sort-by.
var orders = map[string]func(a, b *row) int{
	"name":  func(a, b *row) int { return strings.Compare(a.Name, b.Name) },
	"age":   func(a, b *row) int { return b.Created.Compare(a.Created.Time) },
	"price": func(a, b *row) int { return compareDescending(a.PricePerHour, b.PricePerHour) },
	"cpu":   func(a, b *row) int { return compareDescending(a.CPU, b.CPU) },
}

var errNoNodeClaims = errors.New("this cluster has no NodeClaims, so Karpenter doesn't run in it; choose another with --context or " +
	"--kubeconfig, or ask the platform team to set spec.autoNode")

// Options are those of `autonode nodes`.
type Options struct {
	watch.Options
	Cluster          cluster.Flags
	NodePool, SortBy string
}

// NewCommand returns `autonode nodes`.
func NewCommand() *cobra.Command {
	var o Options
	cmd := command.New(&cobra.Command{
		Use:   "nodes",
		Short: "Show each node's price and utilization, and why it stays or goes",
		Long: `Show each node's price and utilization, and why it stays or goes.

The command works in any cluster with Karpenter, and reads nodes, NodeClaims, pods, PodDisruptionBudgets and events.
NodeClaims without a node have rows, too. CPU and MEMORY are the pods' requests as a share of the allocatable
resources; PODS leaves out pods of DaemonSets. Pending pods have no node yet: see "autonode why pod". PRICE/H is the
list price in the node's label eks-node-viewer/instance-price.`,
		Example: `  autonode nodes --watch
  autonode nodes --nodepool general --sort-by price
  autonode nodes -o json`,
	}, &o)
	flags := cmd.Flags()
	o.Cluster.Add(cmd, cluster.Guest, nil)
	flags.StringVar(&o.NodePool, "nodepool", "", "show the nodes of one NodePool; by default all nodes")
	o.Cluster.Complete(cmd, &karpv1.NodePool{}, "nodepool")
	o.SortBy = "name"
	command.AddChoice(cmd, &o.SortBy, "sort-by", "", "order, the youngest, dearest and fullest first", slices.Sorted(maps.Keys(orders))...)
	o.Add(cmd)
	return cmd
}

// Run prints the nodes, once or until ctx is done.
func (o *Options) Run(ctx context.Context, streams command.Streams) error {
	return o.Show(ctx, o.Cluster.Connect, streams, cache.Options{
		Scheme: clientgoscheme.Scheme, DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{&corev1.Event{}: {Field: aboutNodeClaims}},
	}, []client.Object{&karpv1.NodeClaim{}, &corev1.Node{}, &corev1.Pod{}, &policyv1.PodDisruptionBudget{}, &corev1.Event{}}, o.show)
}

func (o *Options) show(ctx context.Context, reader client.Reader, to io.Writer, live bool) error {
	var events []client.ListOption // a cache has those of NodeClaims alone
	if live {
		events = append(events, client.MatchingFieldsSelector{Selector: aboutNodeClaims})
	}
	v, err := read(ctx, reader, clock.RealClock{}, events...)
	if err != nil {
		return err
	}
	if o.NodePool != "" && !o.Watch {
		if err := o.known(v); err != nil {
			return err
		}
	}
	rows := sorted(v.rows(o.NodePool), orders[o.SortBy])
	var names []string
	for _, r := range rows {
		names = append(names, r.Name)
	}
	return printer.Print(to, o.Output, listed{rows, v.pending()}, func(to io.Writer) error { return printTable(to, rows, v.pending()) },
		names...)
}

// known returns an error if --nodepool names no NodePool that has nodes.
func (o *Options) known(v *view) error {
	pools := sets.New[string]()
	for _, r := range v.rows("") {
		pools.Insert(r.NodePool)
	}
	pools.Delete("")
	switch {
	case pools.Has(o.NodePool):
		return nil
	case pools.Len() == 0:
		return fmt.Errorf("NodePool %q has no nodes, and no other has any; see `kubectl get nodepools`", o.NodePool)
	default:
		return fmt.Errorf("NodePool %q has no nodes; NodePools with nodes: %s", o.NodePool, strings.Join(sets.List(pools), ", "))
	}
}

// read lists all that a table of nodes is made of. events choose those of NodeClaims where the reader doesn't have those alone.
func read(ctx context.Context, reader client.Reader, clk clock.Clock, events ...client.ListOption) (*view, error) {
	v := &view{clock: clk}
	// What the API server has in its cache is new enough, and costs etcd nothing.
	cached := &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}}
	for _, list := range []struct {
		what string
		into client.ObjectList
		opts []client.ListOption
	}{
		{"NodeClaims", &v.nodeClaims, []client.ListOption{cached}},
		{"nodes", &v.nodes, []client.ListOption{cached}},
		{"pods", &v.pods, []client.ListOption{cached}},
		{"PodDisruptionBudgets", &v.budgets, []client.ListOption{cached}},
		{"events", &v.events, events},
	} {
		err := reader.List(ctx, list.into, list.opts...)
		if meta.IsNoMatchError(err) {
			return nil, errNoNodeClaims
		}
		if err != nil {
			return nil, fmt.Errorf("listing %s: %w", list.what, err)
		}
	}
	return v, nil
}
