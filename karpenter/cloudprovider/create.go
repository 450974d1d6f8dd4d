// SPDX-License-Identifier: Apache-2.0

package cloudprovider

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/awslabs/operatorpkg/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
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
func (c *CloudProvider) Create(ctx context.Context, nodeClaim *karpv1.NodeClaim) (*karpv1.NodeClaim, error) {
	created, err := c.create(ctx, nodeClaim)
	for began := time.Now(); isUnsettled(err) && time.Since(began) < settleTimeout && pause(ctx, settleInterval); {
		created, err = c.create(ctx, nodeClaim)
	}
	if err == nil {
		return created, nil
	}
	if ctx.Err() != nil || isUnanswered(err) {
		// The error has the management cluster's address, which is no business of the guest's.
		log.FromContext(ctx).V(1).Info("management cluster doesn't answer", "error", err.Error())
		return nil, karpcloudprovider.NewCreateError(err, ManagementUnreachableReason, "management cluster doesn't answer; Karpenter retries")
	}
	c.Reservations.Abandon(ctx, nodeClaim, err)
	return nil, c.ended(nodeClaim, err)
}

// pause waits, and reports whether the context is still valid.
func pause(ctx context.Context, duration time.Duration) bool {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (c *CloudProvider) create(ctx context.Context, nodeClaim *karpv1.NodeClaim) (*karpv1.NodeClaim, error) {
	nodeClass, err := c.readyNodeClass(ctx, nodeClaim)
	if err != nil {
		return nil, err
	}
	switch existing, err := c.Machines.ForNodeClaim(ctx, nodeClaim.UID); {
	case err == nil:
		return c.answerExisting(ctx, nodeClaim, nodeClass, existing)
	case !errors.Is(err, machine.ErrNotFound):
		return nil, because(MachineNotCreatedReason, err)
	}
	if err := c.Reservations.Open(ctx); err != nil {
		return nil, because(CapacityLeaseUnreadReason, err)
	}
	chosen, err := c.choose(ctx, nodeClaim, nodeClass)
	if err != nil {
		return nil, err
	}
	defer c.Reservations.Done(nodeClaim)
	plan, err := c.plan(ctx, nodeClaim, nodeClass, chosen)
	if err != nil {
		return nil, err
	}
	created, err := c.Machines.Create(ctx, plan)
	if err != nil {
		return nil, c.notCreated(nodeClaim, chosen, err)
	}
	c.Rejections.Works(nodePoolOf(nodeClaim), chosen.choice.Key)
	if !chosen.made(created) {
		// An earlier attempt created it from another choice, and the cache hasn't seen it.
		return c.answerExisting(ctx, nodeClaim, nodeClass, created)
	}
	log.FromContext(ctx).Info("created machine", "Machine", klog.KObj(created), "template", chosen.choice.Template.Source.Annotation(),
		"instanceType", chosen.instanceType.Name, "zone", chosen.offering.Zone(), "capacityType", chosen.offering.CapacityType(), "price", chosen.offering.Price)
	return answer(nodeClaim, created, &chosen)
}

func (c *CloudProvider) readyNodeClass(ctx context.Context, nodeClaim *karpv1.NodeClaim) (*v1alpha1.ClusterAPINodeClass, error) {
	if nodeClaim.Spec.NodeClassRef == nil {
		return nil, karpcloudprovider.NewInsufficientCapacityError(fmt.Errorf("NodeClaim %s names no node class", nodeClaim.Name))
	}
	nodeClass, err := c.nodeClass(ctx, nodeClaim.Spec.NodeClassRef.Name)
	if apierrors.IsNotFound(err) {
		return nil, karpcloudprovider.NewInsufficientCapacityError(err)
	}
	if err != nil {
		return nil, err
	}
	ready := nodeClass.StatusConditions().Get(status.ConditionReady)
	switch {
	case nodeClass.DeletionTimestamp != nil:
		return nil, karpcloudprovider.NewNodeClassNotReadyError(fmt.Errorf("node class %s is being deleted", nodeClass.Name))
	case nodeClass.Annotations[v1alpha1.DrainingAnnotation] == "true":
		return nil, karpcloudprovider.NewNodeClassNotReadyError(fmt.Errorf("node class %s: AutoNode is being turned off", nodeClass.Name))
	case ready != nil && ready.ObservedGeneration != nodeClass.Generation:
		// The templates, too, may be those that an earlier spec selected.
		err := fmt.Errorf("node class %s has changed and isn't evaluated yet", nodeClass.Name)
		return nil, because(NodeClassReadinessUnknownReason, err)
	case ready.IsFalse():
		return nil, karpcloudprovider.NewNodeClassNotReadyError(fmt.Errorf("node class %s: %s", nodeClass.Name, ready.Message))
	case !ready.IsTrue():
		err := fmt.Errorf("it isn't known yet whether node class %s is ready", nodeClass.Name)
		return nil, because(NodeClassReadinessUnknownReason, err)
	}
	return nodeClass, nil
}
