// SPDX-License-Identifier: Apache-2.0

// Package describe is `autonode describe`, which shows a hosted cluster from its HostedCluster to its nodes, and the first thing that is
// wrong.
package describe

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	podutils "sigs.k8s.io/karpenter/pkg/utils/pod"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/cli/check"
	"github.com/autonode-io/autonode/cli/cluster"
	"github.com/autonode-io/autonode/cli/command"
	"github.com/autonode-io/autonode/cli/explain"
	"github.com/autonode-io/autonode/cli/printer"
	"github.com/autonode-io/autonode/cli/why"
)

// Options are those of `autonode describe cluster`.
type Options struct {
	Management, Guest cluster.Flags
	Name, Namespace   string
	Output            string
}

// NewCommand returns `autonode describe`.
func NewCommand() *cobra.Command {
	return command.Group(&cobra.Command{
		Use:   "describe",
		Short: "Show a hosted cluster from its HostedCluster to its nodes, with the problems found",
	}, newClusterCommand())
}

func newClusterCommand() *cobra.Command {
	var o Options
	cmd := command.New(&cobra.Command{
		Use:   "cluster [NAMESPACE/]NAME",
		Short: "Show a hosted cluster from its HostedCluster to its nodes, with the problems found",
		Long: `Show a hosted cluster from its HostedCluster to its nodes, with the problems found.

The command reads the management cluster: the HostedCluster, its Cluster, Karpenter and the Machines. With
--guest-kubeconfig or --guest-context it reads the guest, too: node classes, NodePools, NodeClaims, nodes and pending
pods, of which it explains the oldest as ` + "`autonode why pod`" + ` does. A line begins with ! where an object has a problem.
The last line repeats the first problem, which often causes the others.`,
		Example: `  autonode describe cluster clusters/blue
  autonode describe cluster blue -n clusters --guest-kubeconfig blue.kubeconfig
  autonode describe cluster clusters/blue -o json | jq -r '.. | .wrong? // empty'`,
		Args: command.ExactlyOne(&o.Name, "NAME", "the HostedCluster, like clusters/blue"),
	}, &o)
	o.Management.Add(cmd, cluster.Management, &o.Guest)
	cmd.Flags().StringVarP(&o.Namespace, "namespace", "n", "", "namespace of the HostedCluster; by default that of the context")
	printer.AddFlag(cmd, &o.Output)
	o.Management.Complete(cmd, &v1beta1.HostedCluster{}, "")
	o.Management.Complete(cmd, &corev1.Namespace{}, "namespace")
	return cmd
}

// Run prints the tree.
func (o *Options) Run(ctx context.Context, streams command.Streams) error {
	key, err := o.Management.Find(ctx, o.Name, o.Namespace, "a HostedCluster, like clusters/blue", &v1beta1.HostedCluster{})
	if err != nil {
		return err
	}
	management, err := o.Management.Client()
	if err != nil {
		return err
	}
	v := &view{}
	if err := v.readManagement(ctx, management, key); err != nil {
		return err
	}
	if o.Guest.Chosen() {
		guest, err := o.Guest.Client()
		if err != nil {
			return err
		}
		if err := v.readGuest(ctx, guest); err != nil {
			return err
		}
		if v.oldest != nil {
			explainer := why.Options{Guest: o.Guest, Management: o.Management, HostedCluster: key.String()}
			v.answer, err = explainer.ExplainPod(ctx, client.ObjectKeyFromObject(v.oldest))
			v.exists(err, "why pod "+v.oldest.Name+" is pending")
		}
	}
	return v.print(streams.Out, o.Output)
}

// view is what a tree is made of. What doesn't exist is nil.
type view struct {
	hostedCluster *v1beta1.HostedCluster
	cluster       *clusterv1.Cluster
	component     *v1beta1.ControlPlaneComponent
	machines      []clusterv1.Machine
	// guest: the guest was read.
	guest      bool
	classes    []v1alpha1.ClusterAPINodeClass
	pools      []karpv1.NodePool
	nodeClaims []karpv1.NodeClaim
	nodes      map[string]*corev1.Node
	// pending is how many pods wait for a node. answer explains the oldest; nil if it couldn't be explained.
	pending int
	oldest  *corev1.Pod
	answer  *explain.PodAnswer
	// clusterFaults and karpenterFaults are found beside conditions.
	clusterFaults, karpenterFaults check.Report
	// problems are what couldn't be read.
	problems []string
}

func (v *view) readManagement(ctx context.Context, management client.Reader, key client.ObjectKey) error {
	v.hostedCluster = &v1beta1.HostedCluster{}
	switch err := management.Get(ctx, key, v.hostedCluster); {
	case meta.IsNoMatchError(err):
		return errors.New("this cluster has no HostedClusters: AutoNode isn't installed in it; choose the management cluster with --context " +
			"or --kubeconfig")
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no HostedCluster %s; list them with `kubectl get hostedclusters.autonode.io -A`", key)
	case err != nil:
		return fmt.Errorf("reading HostedCluster %s: %w", key, err)
	}
	namespace := v.hostedCluster.ControlPlaneNamespace()
	found, component := &clusterv1.Cluster{}, &v1beta1.ControlPlaneComponent{}
	if v.exists(management.Get(ctx, client.ObjectKey{Namespace: namespace, Name: v.hostedCluster.ClusterName()}, found), "the Cluster") {
		v.cluster = found
		v.clusterFaults.ControlPlane(found)
		v.exists(v.clusterFaults.Kubeconfig(ctx, management, found), "the guest's kubeconfig")
	}
	if v.exists(management.Get(ctx, client.ObjectKey{Namespace: namespace, Name: v.hostedCluster.Names().Karpenter}, component),
		"the ControlPlaneComponent") {
		v.component = component
		v.exists(v.karpenterFaults.Karpenter(ctx, management, client.ObjectKeyFromObject(component)), "Karpenter's Deployment")
	}
	machines := &clusterv1.MachineList{}
	v.exists(management.List(ctx, machines, client.InNamespace(namespace), client.HasLabels{v1alpha1.NodeClaimLabel},
		client.MatchingLabels{clusterv1.ClusterNameLabel: v.hostedCluster.ClusterName()}), "Machines")
	v.machines = machines.Items
	return nil
}

func (v *view) readGuest(ctx context.Context, guest client.Reader) error {
	nodes, pools, claims, classes, pods := &corev1.NodeList{}, &karpv1.NodePoolList{}, &karpv1.NodeClaimList{},
		&v1alpha1.ClusterAPINodeClassList{}, &corev1.PodList{}
	if err := guest.List(ctx, nodes); err != nil {
		return fmt.Errorf("listing the guest's nodes: %w", err)
	}
	v.guest, v.nodes = true, map[string]*corev1.Node{}
	for i := range nodes.Items {
		v.nodes[nodes.Items[i].Name] = &nodes.Items[i]
	}
	v.exists(guest.List(ctx, pools), "the guest's NodePools")
	v.exists(guest.List(ctx, claims), "the guest's NodeClaims")
	v.exists(guest.List(ctx, classes), "the guest's node classes")
	v.exists(guest.List(ctx, pods, client.MatchingFields{"spec.nodeName": ""}), "the guest's pending pods")
	v.pools, v.nodeClaims, v.classes = pools.Items, claims.Items, classes.Items
	for i := range pods.Items {
		if pod := &pods.Items[i]; podutils.IsProvisionable(pod) {
			if v.pending++; v.oldest == nil || pod.CreationTimestamp.Before(&v.oldest.CreationTimestamp) {
				v.oldest = pod
			}
		}
	}
	return nil
}

// exists reports whether something was read. Another error than that it doesn't exist is a problem.
func (v *view) exists(err error, what string) bool {
	if err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
		v.problems = append(v.problems, fmt.Sprintf("reading %s: %v", what, err))
	}
	return err == nil
}
