// SPDX-License-Identifier: Apache-2.0

// Package karpenter has Karpenter keep within the CapacityLease of its cluster.
package karpenter

import (
	"context"
	"time"

	"github.com/awslabs/operatorpkg/controller"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/autonode-io/autonode/fleet/division"
	"github.com/autonode-io/autonode/fleet/karpenter/capacitylease"
	"github.com/autonode-io/autonode/fleet/karpenter/limit"
	"github.com/autonode-io/autonode/fleet/karpenter/reclaim"
	"github.com/autonode-io/autonode/fleet/karpenter/wanted"
	"github.com/autonode-io/autonode/karpenter/core/methods"
	"github.com/autonode-io/autonode/karpenter/operator"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// Extend limits launches to the CapacityLease, reports to it, requests machines for pods that wait, and returns what others reclaim.
func Extend(ctx context.Context, x *operator.Environment) error {
	lease := types.NamespacedName{Namespace: x.Options.Namespace, Name: x.Options.Names().Karpenter}
	// An older management cluster doesn't serve the kind.
	leases := x.Management.Named(limit.Mapper(), limit.Kind, lease.Name)
	if err := x.Guest.Add(leases); err != nil {
		return err
	}
	election := limit.Election{Config: x.Management.GetConfig(), Options: options.FromContext(ctx)}
	config := limit.Config{Clock: x.Guest.Clock, Source: &limit.Cluster{
		Leases: leases, Reader: x.Management.GetAPIReader(),
		Namespace: lease.Namespace, ClusterName: x.Options.ClusterName, LeaseName: lease.Name,
		Owns: x.Machines.Owns, Name: x.Machines.InstanceName, IsFirst: election.IsFirst,
	}}
	if !x.Simulated {
		config.Memory = election
	}
	limiter := limit.New(config)
	if err := limiter.Watch(ctx, x.Management.GetCache(), x.Machines.Owns); err != nil {
		return err
	}
	leases.OnChange(func(schema.GroupKind) { limiter.Trigger() })
	x.Capacity = limiter
	x.Methods = append(x.Methods, func(core methods.Core) disruption.Method {
		if _, reclaims := limiter.Reclaims(); x.Simulated && len(reclaims) == 0 {
			return nil
		}
		return reclaim.New(reclaim.Config{Core: core, Reclaims: limiter.Reclaims, Taken: limiter.Taken})
	})
	x.Controllers = append(x.Controllers, func(methods.Core) controller.Controller {
		return capacitylease.New(capacitylease.Config{
			Management: x.Management.GetClient(), Lease: lease, Capacity: limiter, Unavailable: x.Unavailable, Clock: x.Guest.Clock,
		})
	})
	x.Controllers = append(x.Controllers, func(core methods.Core) controller.Controller {
		return wanted.New(wanted.Config{
			Short: limiter.Short, CanReclaim: limiter.CanReclaim, Want: limiter.Want, Clock: core.Clock,
			Pending: core.Pending, Simulate: wanted.ByScheduler(core), MachineOf: x.CloudProvider.MachineOf,
			InTime: func(ctx context.Context) context.Context { return x.CloudProvider.InTime(ctx, limiter.InTime) },
		})
	})
	x.Follow = append(x.Follow, func(ctx context.Context, advance func(time.Duration)) error { return follow(ctx, x, limiter, advance) })
	return nil
}

// follow reads the lease and the last report in it.
func follow(ctx context.Context, x *operator.Environment, limiter *limit.Provider, advance func(time.Duration)) error {
	if _, err := limiter.Step(ctx); err != nil {
		return err
	}
	lease := limiter.Lease()
	if lease == nil {
		return nil
	}
	// A new process waits until requests of its predecessor have had their effect. This one launches nothing.
	advance(division.InFlight)
	if _, err := limiter.Step(ctx); err != nil {
		return err
	}
	reported := lease.Status.Unavailable
	x.Unavailable.Share(append(limit.QuotasOf(reported), limiter.Lease().Quotas...))
	for _, u := range reported {
		x.Unavailable.Mark(offering.Key{InstanceType: u.InstanceType, Zone: u.Zone, CapacityType: u.CapacityType}, u.Reason)
	}
	return nil
}
