// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// aboutNodeClaims selects the events that say why a node stays. Karpenter sends each of a Node and of its NodeClaim.
var aboutNodeClaims = fields.OneTermEqualSelector("involvedObject.kind", "NodeClaim")

// nodeOrders are the values of --sort-by.
var nodeOrders = map[string]func(a, b *nodeRow) int{
	"name":  func(a, b *nodeRow) int { return strings.Compare(a.name, b.name) },
	"age":   func(a, b *nodeRow) int { return b.created.Compare(a.created) },
	"price": func(a, b *nodeRow) int { return compareDescending(a.price, b.price) },
	"cpu":   func(a, b *nodeRow) int { return compareDescending(a.cpu, b.cpu) },
}

var errNoNodeClaims = errors.New("this cluster has no NodeClaims, so Karpenter doesn't run in it; choose another with --context or --kubeconfig, " +
	"or ask the platform team to set spec.autoNode")

func newNodesCommand() *cobra.Command {
	var connection clusterFlags
	var nodePool, order string
	var watch bool
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "Show what nodes cost, how full they are, and why each stays or goes",
		Long: `Show what nodes cost, how full they are, and why each stays or goes.

It works in any cluster with Karpenter, and reads nodes, NodeClaims, pods, PodDisruptionBudgets and events. A NodeClaim
without a node is a row as well. CPU and memory are what pods request of what they can have; pods of DaemonSets don't
count as pods, their requests do. A price is the list price that the node's label eks-node-viewer/instance-price has.`,
		Example: `  autonode nodes --watch
  autonode nodes --nodepool general --sort-by price`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if nodeOrders[order] == nil {
				return fmt.Errorf("--sort-by %q: want one of %s", order, strings.Join(orderNames(), ", "))
			}
			config, err := connection.config()
			if err != nil {
				return err
			}
			show := func(ctx context.Context, reader client.Reader, to io.Writer, events ...client.ListOption) error {
				v, err := readNodes(ctx, reader, clock.RealClock{}, events...)
				if err != nil {
					return err
				}
				return printNodes(to, v.rows(nodePool), nodeOrders[order])
			}
			if watch {
				return watchTable(cmd.Context(), config, cmd.OutOrStdout(), watchedNodes(), func(ctx context.Context, reader client.Reader, to io.Writer) error {
					return show(ctx, reader, to)
				})
			}
			guest, err := client.New(config, client.Options{Scheme: scheme.Scheme})
			if err != nil {
				return fmt.Errorf("connecting to %s: %w", config.Host, err)
			}
			return show(cmd.Context(), guest, cmd.OutOrStdout(), client.MatchingFieldsSelector{Selector: aboutNodeClaims})
		},
	}
	flags := cmd.Flags()
	connection.add(flags, "the cluster with the nodes")
	flags.StringVar(&nodePool, "nodepool", "", "show the nodes of one NodePool; without it all nodes")
	flags.StringVar(&order, "sort-by", "name", strings.Join(orderNames(), ", ")+"; the youngest, dearest and fullest first")
	flags.BoolVarP(&watch, "watch", "w", false, "show the table again whenever something changes, until interrupted")
	registerCompletion(cmd, "sort-by", orderNames()...)
	return cmd
}

func orderNames() []string {
	names := make([]string, 0, len(nodeOrders))
	for name := range nodeOrders {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// readNodes lists all that a table of nodes is made of. events choose those of NodeClaims where the reader doesn't have those alone.
func readNodes(ctx context.Context, reader client.Reader, clk clock.Clock, events ...client.ListOption) (*nodesView, error) {
	v := &nodesView{clock: clk}
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

// watchedNodes are the kinds that a table of nodes is made of.
func watchedNodes() watched {
	return watched{
		options: cache.Options{
			Scheme: scheme.Scheme, DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{&corev1.Event{}: {Field: aboutNodeClaims}},
		},
		objects: []client.Object{&karpenterv1.NodeClaim{}, &corev1.Node{}, &corev1.Pod{}, &policyv1.PodDisruptionBudget{}, &corev1.Event{}},
		absent:  errNoNodeClaims,
	}
}
