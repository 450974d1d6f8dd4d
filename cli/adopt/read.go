// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/cli/cluster"
	"github.com/autonode-io/autonode/cli/printer"
)

// adoption is one run of the command.
type adoption struct {
	*Options
	management, guest client.Client
	key               client.ObjectKey
	out               io.Writer

	deployment    *clusterv1.MachineDeployment
	cluster       *clusterv1.Cluster
	hostedCluster *v1beta1.HostedCluster
	pool          *karpv1.NodePool
	class         *v1alpha1.ClusterAPINodeClass
	// set is the only MachineSet with Machines, and machines are all of the namespace that may be the MachineDeployment's.
	set      *clusterv1.MachineSet
	machines []clusterv1.Machine
}

// read reads both clusters, and returns an error for what prevents every adoption now.
func (a *adoption) read(ctx context.Context) error {
	a.deployment, a.cluster = &clusterv1.MachineDeployment{}, &clusterv1.Cluster{}
	if err := a.management.Get(ctx, a.key, a.deployment); err != nil {
		return fmt.Errorf("reading MachineDeployment %s: %w", a.key, err)
	}
	key := client.ObjectKey{Namespace: a.key.Namespace, Name: a.deployment.Spec.ClusterName}
	if err := a.management.Get(ctx, key, a.cluster); err != nil {
		return fmt.Errorf("reading Cluster %s: %w", key, err)
	}
	list := &clusterv1.MachineList{}
	if err := a.management.List(ctx, list, client.InNamespace(key.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: key.Name}); err != nil {
		return fmt.Errorf("listing Machines of Cluster %s: %w", key, err)
	}
	a.machines = list.Items
	if err := a.readSet(ctx); err != nil {
		return err
	}
	if err := a.readHostedCluster(ctx); err != nil {
		return err
	}
	_, topology := a.deployment.Labels[clusterv1.ClusterTopologyOwnedLabel]
	switch {
	case topology:
		return fmt.Errorf("the topology of Cluster %s owns MachineDeployment %s and would restore its replicas; remove the MachineDeployment "+
			"from the topology by draining", key, a.key)
	case annotations.IsPaused(a.cluster, a.deployment) || ptr.Deref(a.deployment.Spec.Paused, false):
		return fmt.Errorf("MachineDeployment %s or its Cluster is paused; unpause it", a.key)
	case a.deployment.DeletionTimestamp != nil:
		return fmt.Errorf("MachineDeployment %s is being deleted", a.key)
	}
	return a.readGuest(ctx)
}

// readSet finds the MachineSet of the Machines.
func (a *adoption) readSet(ctx context.Context) error {
	sets := &clusterv1.MachineSetList{}
	if err := a.management.List(ctx, sets, client.InNamespace(a.key.Namespace)); err != nil {
		return fmt.Errorf("listing MachineSets of namespace %s: %w", a.key.Namespace, err)
	}
	for i := range sets.Items {
		set := &sets.Items[i]
		_, paused := set.Annotations[clusterv1.PausedAnnotation]
		switch {
		case !metav1.IsControlledBy(set, a.deployment) || ptr.Deref(set.Spec.Replicas, 0) == 0 && len(a.owned(set)) == 0 && !paused:
		case a.set != nil:
			return fmt.Errorf("MachineDeployment %s is rolling out: MachineSets %s and %s have Machines; wait until the rollout ends", a.key,
				a.set.Name, set.Name)
		default:
			a.set = set
		}
	}
	return nil
}

// owned returns the Machines that a MachineSet controls and that aren't being deleted.
func (a *adoption) owned(set *clusterv1.MachineSet) (owned []*clusterv1.Machine) {
	for i := range a.machines {
		if m := &a.machines[i]; set != nil && m.DeletionTimestamp == nil && metav1.IsControlledBy(m, set) {
			owned = append(owned, m)
		}
	}
	return owned
}

func (a *adoption) readHostedCluster(ctx context.Context) error {
	list := &v1beta1.HostedClusterList{}
	if err := a.management.List(ctx, list); err != nil {
		return fmt.Errorf("listing HostedClusters: %w", err)
	}
	i := slices.IndexFunc(list.Items, func(h v1beta1.HostedCluster) bool {
		return h.ControlPlaneNamespace() == a.cluster.Namespace && h.ClusterName() == a.cluster.Name
	})
	if i < 0 {
		return fmt.Errorf("no HostedCluster manages Cluster %s/%s: turn AutoNode on first", a.cluster.Namespace, a.cluster.Name)
	}
	a.hostedCluster = &list.Items[i]
	return a.allowed()
}

// allowed returns an error unless Karpenter runs, is paused, or starts after a pause.
func (a *adoption) allowed() error {
	hosted := a.hostedCluster
	state := v1beta1.AutoNodeState("off")
	if hosted.Status.AutoNode != nil && hosted.Spec.AutoNode != nil {
		state = hosted.Status.AutoNode.State
	}
	fine := []v1beta1.AutoNodeState{v1beta1.AutoNodeStateEnabled, v1beta1.AutoNodeStatePaused, v1beta1.AutoNodeStateProgressing}
	if hosted.DeletionTimestamp != nil || !slices.Contains(fine, state) {
		return fmt.Errorf("AutoNode of HostedCluster %s is %s; Machines can be adopted while it is Enabled", client.ObjectKeyFromObject(hosted), state)
	}
	return a.mayPause()
}

func (a *adoption) readGuest(ctx context.Context) error {
	pools := &karpv1.NodePoolList{}
	if err := a.guest.List(ctx, pools); err != nil {
		return fmt.Errorf("listing NodePools: %w", err)
	}
	all, err := cluster.Named(pools.Items, "NodePool", a.NodePool, func(p *karpv1.NodePool) string { return p.Name })
	if err != nil {
		return err
	}
	if len(all) != 1 {
		return fmt.Errorf("the guest has %d NodePools: choose one with --nodepool", len(all))
	}
	a.pool, a.class = &all[0], &v1alpha1.ClusterAPINodeClass{}
	ref := a.pool.Spec.Template.Spec.NodeClassRef
	if a.pool.DeletionTimestamp != nil || ref == nil || ref.Kind != v1alpha1.Kind {
		return fmt.Errorf("NodePool %s is being deleted, or names no %s", a.pool.Name, v1alpha1.Kind)
	}
	if err := a.guest.Get(ctx, client.ObjectKey{Name: ref.Name}, a.class); err != nil {
		return fmt.Errorf("reading node class %s: %w", ref.Name, err)
	}
	if _, held := a.class.Held(); held != "" {
		return fmt.Errorf("node class %s: %s", ref.Name, held)
	}
	return nil
}

// nameOwners reports what may write the replicas that the command lowers.
func (a *adoption) nameOwners(to io.Writer) {
	for _, entry := range a.deployment.ManagedFields {
		if entry.FieldsV1 != nil && strings.Contains(string(entry.FieldsV1.Raw), `"f:replicas"`) && entry.Subresource != "status" &&
			entry.Manager != cluster.FieldOwner {
			printer.Printf(to, "%s owns spec.replicas of MachineDeployment %s: if it would write the old value again, as GitOps does, change it there first\n",
				entry.Manager, a.key)
		}
	}
	if _, scaled := a.deployment.Annotations[clusterv1.AutoscalerMaxSizeAnnotation]; scaled {
		printer.Printf(to, "MachineDeployment %s is a node group of the Cluster Autoscaler: stop that first, or remove the annotation %s\n",
			a.key, clusterv1.AutoscalerMaxSizeAnnotation)
	}
}
