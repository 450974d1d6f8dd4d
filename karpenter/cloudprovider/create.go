// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/awslabs/operatorpkg/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	"github.com/autonode-io/autonode/internal/clusterstatus"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/machine"
)

// settleTimeout is how long a launch waits for data that is missing right after Karpenter has started, or a node class has
// changed: that takes less than a second, and another NodeClaim would be ten seconds later.
const (
	settleTimeout  = 2 * time.Second
	settleInterval = 100 * time.Millisecond
)

// Create creates a Machine for a NodeClaim and returns at once, with a synthetic provider ID and the chosen offering.
// A second call for the same NodeClaim returns the first call's Machine.
//
// Karpenter schedules no pod of any NodePool while a NodeClaim has no provider ID, so a launch fails instead of waiting: the
// error is an InsufficientCapacityError or a NodeClassNotReadyError, by which Karpenter deletes the NodeClaim and plans again
// for its pods. Only if the management cluster doesn't answer, so that no launch succeeds, it is a CreateError, which
// Karpenter retries.
func (c *CloudProvider) Create(ctx context.Context, nodeClaim *karpv1.NodeClaim) (created *karpv1.NodeClaim, err error) {
	if _, adopted := nodeClaim.Annotations[v1alpha1.AdoptedAnnotation]; adopted {
		return c.adopt(ctx, nodeClaim)
	}
	// The poll's own error repeats that of the last attempt.
	_ = wait.PollUntilContextTimeout(ctx, settleInterval, settleTimeout, true, func(context.Context) (bool, error) {
		created, err = c.create(ctx, nodeClaim)
		return !isUnsettled(err), nil
	})
	if err == nil {
		return created, nil
	}
	if ctx.Err() != nil || isUnanswered(err) {
		// The error has the management cluster's address, which is no business of the guest's.
		log.FromContext(ctx).V(1).Info("management cluster doesn't answer", "error", err.Error())
		return nil, karpcloudprovider.NewCreateError(err, ManagementUnreachableReason, "management cluster doesn't answer; Karpenter retries")
	}
	c.abandon(ctx, nodeClaim, err)
	return nil, c.ended(nodeClaim, err)
}

func (c *CloudProvider) create(ctx context.Context, nodeClaim *karpv1.NodeClaim) (*karpv1.NodeClaim, error) {
	nodeClass, err := c.readyNodeClass(ctx, nodeClaim)
	if err != nil {
		return nil, err
	}
	var chosen *launch
	m, err := c.Machines.ForNodeClaim(ctx, nodeClaim.UID)
	if errors.Is(err, machine.ErrNotFound) {
		m, chosen, err = c.launch(ctx, nodeClaim, nodeClass)
	}
	if err != nil {
		return nil, err
	}
	return c.answer(ctx, nodeClaim, m, chosen)
}

// adopt answers with the Machine that `autonode adopt` has bound to a NodeClaim. It launches none, and no state of the node class ends the
// NodeClaim: its node runs.
func (c *CloudProvider) adopt(ctx context.Context, nodeClaim *karpv1.NodeClaim) (*karpv1.NodeClaim, error) {
	m, err := c.Machines.Adopted(ctx, nodeClaim)
	if errors.Is(err, machine.ErrNotFound) || errors.Is(err, machine.ErrTaken) {
		return nil, karpcloudprovider.NewInsufficientCapacityError(errors.New("`autonode adopt` was interrupted before it bound a Machine"))
	}
	if err != nil {
		return nil, karpcloudprovider.NewCreateError(err, ManagementUnreachableReason, "management cluster doesn't answer; Karpenter retries")
	}
	launched := c.launched(ctx, nodeClaim, inventory.OriginOf(m))
	if launched != nil && m.Annotations[v1alpha1.PriceAnnotation] == "" {
		if err := c.Machines.Annotate(ctx, m, launched.facts()); err != nil {
			log.FromContext(ctx).Error(err, "annotating an adopted Machine", "Machine", klog.KObj(m))
		}
	}
	return c.answer(ctx, nodeClaim, m, launched)
}

// launch chooses an offering for a NodeClaim, reserves what that needs, and creates the Machine. An earlier attempt may have created it
// from another choice, and the cache not have it yet.
func (c *CloudProvider) launch(
	ctx context.Context, nodeClaim *karpv1.NodeClaim, nodeClass *v1alpha1.ClusterAPINodeClass,
) (*clusterv1.Machine, *launch, error) {
	cluster, err := c.readyCluster(ctx)
	if err != nil {
		return nil, nil, err
	}
	chosen, err := c.reserve(ctx, nodeClaim, nodeClass)
	if err != nil {
		return nil, nil, err
	}
	defer chosen.done()
	plan, err := c.plan(nodeClaim, nodeClass, cluster, chosen)
	if err != nil {
		return nil, nil, err
	}
	m, err := c.Machines.Create(ctx, plan)
	if err != nil {
		return nil, nil, c.notCreated(nodeClaim, chosen, err)
	}
	c.Rejections.Works(nodePoolOf(nodeClaim), chosen.choice.Key)
	origin := inventory.OriginOf(m)
	log.FromContext(ctx).Info("created machine", "Machine", klog.KObj(m), "template", origin.Source, "instanceType", origin.InstanceType,
		"zone", origin.Zone, "capacityType", origin.CapacityType, "price", m.Annotations[v1alpha1.PriceAnnotation])
	return m, chosen, nil
}

// readyNodeClass returns a NodeClaim's node class. The conditions of one that has just changed may not have caught up.
func (c *CloudProvider) readyNodeClass(ctx context.Context, nodeClaim *karpv1.NodeClaim) (*v1alpha1.ClusterAPINodeClass, error) {
	nodeClass, err := c.nodeClass(ctx, nodeClaim.Spec.NodeClassRef.Name)
	if apierrors.IsNotFound(err) {
		return nil, karpcloudprovider.NewInsufficientCapacityError(err)
	}
	if err != nil {
		return nil, err
	}
	ready := nodeClass.StatusConditions().Get(status.ConditionReady)
	unallowed := machine.Unallowed(nodeClass.Spec.BootstrapPatches, c.AllowedPatches)
	outOfBounds := c.KubeletBounds.Problems(nodeClass.Spec.Kubelet)
	_, problem := nodeClass.Held()
	switch {
	case nodeClass.DeletionTimestamp != nil:
		problem = "it is being deleted"
	case problem != "":
	case ready != nil && (ready.ObservedGeneration != nodeClass.Generation || v1alpha1.IsStopped(ready.Reason)):
		// The templates, too, may be those that an earlier spec selected. The operator reports a Karpenter that doesn't run; this one does.
		return nil, because(NodeClassReadinessUnknownReason, fmt.Errorf("node class %s has changed and isn't evaluated yet", nodeClass.Name))
	case ready.IsFalse():
		problem = ready.Message
	case !ready.IsTrue():
		return nil, because(NodeClassReadinessUnknownReason, fmt.Errorf("it isn't known yet whether node class %s is ready", nodeClass.Name))
	case unallowed != "":
		problem = "the platform doesn't allow its spec.bootstrapPatches for " + unallowed
	case len(outOfBounds) > 0:
		problem = "spec.kubelet." + outOfBounds[0]
	}
	if problem != "" {
		return nil, karpcloudprovider.NewNodeClassNotReadyError(fmt.Errorf("node class %s: %s", nodeClass.Name, problem))
	}
	return nodeClass, nil
}

// readyCluster returns the Cluster that the machine joins.
func (c *CloudProvider) readyCluster(ctx context.Context) (*clusterv1.Cluster, error) {
	cluster := &clusterv1.Cluster{}
	key := types.NamespacedName{Namespace: c.Machines.Namespace, Name: c.Machines.ClusterName}
	if err := c.Management.Get(ctx, key, cluster); err != nil {
		return nil, because(ClusterUnreadableReason, fmt.Errorf("reading Cluster %s: %w", key, err))
	}
	if cluster.DeletionTimestamp != nil {
		// The node class's status may lag, or a user may have overwritten it.
		return nil, karpcloudprovider.NewNodeClassNotReadyError(fmt.Errorf("its Cluster %s is being deleted", key))
	}
	if notReady := clusterstatus.NotReady(cluster); notReady != "" && (!clusterstatus.Provisioned(cluster) || c.Inventory.Pending() > 0) {
		return nil, karpcloudprovider.NewNodeClassNotReadyError(errors.New(notReady))
	}
	return cluster, nil
}
