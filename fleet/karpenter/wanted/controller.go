// SPDX-License-Identifier: Apache-2.0

// Package wanted requests machines from the CapacityLease for pods that no offering has room for. Karpenter core makes no NodeClaim for
// such pods, so no launch requests them, and without a request the operator grants and reclaims nothing for them.
package wanted

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/awslabs/operatorpkg/singleton"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	karpcloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/operator/injection"

	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/fleet/division"
	"github.com/autonode-io/autonode/karpenter/core/methods"
)

const (
	// interval is how often pods are listed, as often as Karpenter core plans for pending ones. No watch reports that pods go on waiting.
	interval = 10 * time.Second
	// longest bounds it where many pods wait: a request has to be renewed within capacity.LeftTTL.
	longest = division.LeftTTL - 5*time.Second
	// share is how many times longer than the simulation the controller pauses after it.
	share = 5
	// unsynced is how long it waits for Karpenter core's state, as long as that takes to have a provider ID of each NodeClaim.
	unsynced = time.Second
)

// ErrUnsynced is returned while Karpenter core plans nothing, because its state lags behind the cluster.
var ErrUnsynced = errors.New("the state of the cluster isn't synced")

// Config of the controller.
type Config struct {
	// Short reports whether the lease leaves too little of a pool for some machine.
	Short func() bool
	// CanReclaim reports whether the lease leaves nothing of a reservation of which the cluster may reclaim machines.
	CanReclaim func() bool
	// Pending counts the pods that may wait for a node.
	Pending func(context.Context) (int, error)
	// Simulate plans for pods as Karpenter core does.
	Simulate func(context.Context) (scheduling.Results, error)
	// InTime returns a context in which Simulate plans with the room that the lease might have in time.
	InTime func(context.Context) context.Context
	// MachineOf returns a machine of an offering as the CapacityLease counts it.
	MachineOf func(nodeClass, instanceType string, o *karpcloudprovider.Offering) (capacity.Machine, bool)
	// Want requests machines.
	Want  func(map[capacity.Machine]int64)
	Clock clock.PassiveClock
}

// Controller requests machines for waiting pods.
type Controller struct{ Config }

// New returns the controller.
func New(config Config) *Controller { return &Controller{config} }

// Name of the controller.
func (c *Controller) Name() string { return "capacitylease.wanted" }

// ByScheduler plans with Karpenter core's scheduler, and launches nothing. The error may wrap ErrUnsynced.
func ByScheduler(core methods.Core) func(context.Context) (scheduling.Results, error) {
	return func(ctx context.Context) (scheduling.Results, error) {
		if !core.Cluster.Synced(ctx) {
			return scheduling.Results{}, ErrUnsynced
		}
		results, err := disruption.SimulateScheduling(ctx, core.Guest, core.Cluster, core.Provisioner, core.Clock, core.Recorder,
			[]scheduling.Options{scheduling.DisableReservedCapacityFallback}, disruption.SimulationOptions{})
		if errors.Is(err, provisioning.ErrNodePoolsNotFound) {
			return scheduling.Results{}, nil
		}
		return results, err //nolint:wrapcheck // the caller reports what it did
	}
}

// Reconcile requests machines for the pods that wait now.
func (c *Controller) Reconcile(ctx context.Context) (reconciler.Result, error) {
	ctx = injection.WithControllerName(ctx, c.Name())
	began := c.Clock.Now()
	switch err := c.request(ctx); {
	case errors.Is(err, ErrUnsynced):
		return reconciler.Result{RequeueAfter: unsynced}, nil
	case err != nil:
		return reconciler.Result{}, err
	}
	return reconciler.Result{RequeueAfter: min(max(interval, share*c.Clock.Since(began)), longest)}, nil
}

func (c *Controller) request(ctx context.Context) error {
	if !c.Short() {
		return nil
	}
	if pending, err := c.Pending(ctx); err != nil || pending == 0 {
		return err
	}
	now, err := c.Simulate(ctx)
	if err != nil {
		return fmt.Errorf("planning for pending pods: %w", err)
	}
	waiting := unschedulable(now, c.CanReclaim())
	if len(waiting) == 0 {
		return nil
	}
	inTime, err := c.Simulate(c.InTime(ctx))
	if err != nil {
		return fmt.Errorf("planning for pending pods with what may be granted: %w", err)
	}
	machines := map[capacity.Machine]int64{}
	for _, claim := range inTime.NewNodeClaims {
		if serves(claim, waiting) {
			if machine, ok := c.cheapest(claim); ok {
				machines[machine]++
			}
		}
	}
	c.Want(machines)
	return nil
}

// unschedulable returns the pods that get neither a node nor a new NodeClaim; reserved: also those that Karpenter core has wait for a full
// reservation.
func unschedulable(results scheduling.Results, reserved bool) sets.Set[types.UID] {
	waiting := sets.New[types.UID]()
	for pod, err := range results.PodErrors {
		if (reserved || !scheduling.IsReservedOfferingError(err)) && !scheduling.IsDRAError(err) {
			waiting.Insert(pod.UID)
		}
	}
	for _, node := range results.ExistingNodes {
		for _, pod := range node.Pods {
			waiting.Delete(pod.UID) // its node isn't initialized yet
		}
	}
	return waiting
}

// serves reports whether one of the pods would be placed on a NodeClaim.
func serves(claim *scheduling.NodeClaim, waiting sets.Set[types.UID]) bool {
	for _, pod := range claim.Pods {
		if waiting.Has(pod.UID) {
			return true
		}
	}
	return false
}

// cheapest returns the cheapest machine of a NodeClaim as the CapacityLease counts it.
func (c *Controller) cheapest(claim *scheduling.NodeClaim) (capacity.Machine, bool) {
	if claim.Spec.NodeClassRef == nil {
		return capacity.Machine{}, false
	}
	var instanceType string
	var cheapest *karpcloudprovider.Offering
	for _, it := range claim.InstanceTypeOptions {
		offerings := it.Offerings.Launchable().Compatible(claim.Requirements)
		if len(offerings) == 0 {
			continue
		}
		if o := offerings.Cheapest(); cheapest == nil || o.Price < cheapest.Price {
			instanceType, cheapest = it.Name, o
		}
	}
	if cheapest == nil {
		return capacity.Machine{}, false
	}
	return c.MachineOf(claim.Spec.NodeClassRef.Name, instanceType, cheapest)
}

// Register implements operatorpkg's controller.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named(c.Name()).WatchesRawSource(singleton.Source()).Complete(singleton.AsReconciler(c))
}
