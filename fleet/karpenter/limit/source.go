// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/karpenter/v1alpha1"
	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/capacity/annotation"
	"github.com/autonode-io/autonode/fleet/conversion"
	"github.com/autonode-io/autonode/fleet/division"
	"github.com/autonode-io/autonode/karpenter/providers/informer"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// Kind of the lease.
var Kind = schema.GroupKind{Group: autonodev1alpha1.Group, Kind: "CapacityLease"}

// Mapper maps CapacityLeases without a request to the API server, which may not serve them.
func Mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper([]schema.GroupVersion{autonodev1alpha1.GroupVersion})
	m.AddSpecific(autonodev1alpha1.GroupVersion.WithKind(Kind.Kind), autonodev1alpha1.GroupVersion.WithResource("capacityleases"),
		autonodev1alpha1.GroupVersion.WithResource("capacitylease"), meta.RESTScopeNamespace)
	return m
}

// Cluster is a Source in the management cluster.
type Cluster struct {
	// Leases caches the control-plane namespace's CapacityLeases.
	Leases *informer.Set
	// Reader reads from the API server.
	Reader client.Reader
	// Namespace and ClusterName of this cluster.
	Namespace, ClusterName string
	// LeaseName is the name of the CapacityLease.
	LeaseName string
	// Owns reports whether this provider made a Machine.
	Owns func(client.Object) bool
	// Name returns the name of a NodeClaim's Machine.
	Name func(ctx context.Context, nodeClaim string) (string, error)
	// IsFirst reports whether no other process was ever elected; nil if it isn't known.
	IsFirst func(context.Context) (bool, error)
}

var _ Source = (*Cluster)(nil)

// Cached implements Source.
func (c *Cluster) Cached(ctx context.Context) (*Lease, error) {
	object, err := c.Leases.Get(ctx, Kind, c.LeaseName)
	var unreadable *informer.UnreadableError
	switch {
	case apierrors.IsNotFound(err), errors.As(err, &unreadable) && unreadable.Permanent():
		return nil, nil //nolint:nilnil // see Source
	case err != nil:
		return nil, fmt.Errorf("reading the CapacityLease: %w", err)
	}
	lease := &autonodev1alpha1.CapacityLease{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, lease); err != nil {
		return nil, fmt.Errorf("reading the CapacityLease: %w", err)
	}
	return leaseOf(lease), nil
}

// Live implements Source.
func (c *Cluster) Live(ctx context.Context) (*Lease, error) {
	lease := &autonodev1alpha1.CapacityLease{}
	err := c.Reader.Get(ctx, types.NamespacedName{Namespace: c.Namespace, Name: c.LeaseName}, lease)
	switch {
	case meta.IsNoMatchError(err), apierrors.IsForbidden(err):
		return nil, fmt.Errorf("%w: %w", ErrUnserved, err)
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // see Source
	case err != nil:
		return nil, fmt.Errorf("reading the CapacityLease: %w", err)
	}
	return leaseOf(lease), nil
}

// Machines implements Source.
func (c *Cluster) Machines(ctx context.Context) (map[string]capacity.Machine, error) {
	list := &clusterv1.MachineList{}
	if err := c.Reader.List(ctx, list, client.InNamespace(c.Namespace),
		client.MatchingLabels{clusterv1.ClusterNameLabel: c.ClusterName}, client.HasLabels{v1alpha1.NodeClaimUIDLabel}); err != nil {
		return nil, fmt.Errorf("listing Machines: %w", err)
	}
	machines := make(map[string]capacity.Machine, len(list.Items))
	for i := range list.Items {
		m := &list.Items[i]
		if c.Owns(m) {
			machines[v1alpha1.NodeClaimOf(m)] = annotation.MachineOf(m).Machine
		}
	}
	return machines, nil
}

// Machine implements Source.
func (c *Cluster) Machine(ctx context.Context, nodeClaim string) (capacity.Machine, bool, error) {
	name, err := c.Name(ctx, nodeClaim)
	if err != nil {
		return capacity.Machine{}, false, err
	}
	m := &clusterv1.Machine{}
	err = c.Reader.Get(ctx, types.NamespacedName{Namespace: c.Namespace, Name: name}, m)
	if apierrors.IsNotFound(err) || err == nil && !c.Owns(m) {
		return capacity.Machine{}, false, nil
	}
	if err != nil {
		return capacity.Machine{}, false, fmt.Errorf("reading Machine %s: %w", name, err)
	}
	return annotation.MachineOf(m).Machine, true, nil
}

// First implements Source.
func (c *Cluster) First(ctx context.Context) (bool, error) {
	if c.IsFirst == nil {
		return false, nil
	}
	return c.IsFirst(ctx)
}

// leaseOf reads what a CapacityLease declares.
func leaseOf(object *autonodev1alpha1.CapacityLease) *Lease {
	l := &Lease{Lease: conversion.Lease(object), ResourceVersion: object.ResourceVersion, Generation: object.Generation, Status: object.Status}
	if object.Spec.Account == nil {
		return l // it limits nothing
	}
	l.Account, l.AccountName, l.Rules = object.Spec.Account.UID, object.Spec.Account.Name, conversion.Rules(object.Spec.Pools)
	l.ReclaimGracePeriod = object.Spec.ReclaimGracePeriod.Or(division.DefaultReclaimGracePeriod)
	l.Expires = map[string]time.Time{}
	for _, pool := range object.Spec.Pools {
		if pool.Expires != nil {
			l.Expires[pool.Name] = pool.Expires.At()
		}
	}
	l.Commitments = conversion.CommittedTo(object)
	for i := range object.Spec.Unavailable {
		u := &object.Spec.Unavailable[i]
		if u.Quota == "" {
			l.Unavailable = append(l.Unavailable,
				division.Unavailable{InstanceType: u.InstanceType, Zone: u.Zone, CapacityType: u.CapacityType, Until: u.Until.At()})
		}
	}
	l.Quotas = QuotasOf(object.Spec.Unavailable)
	return l
}

// QuotasOf returns the exhausted quotas in a report.
func QuotasOf(report []autonodev1alpha1.UnavailableOffering) (quotas []offering.ClosedQuota) {
	for i := range report {
		if u := &report[i]; u.Quota != "" {
			quotas = append(quotas, offering.ClosedQuota{
				QuotaName: capacity.QuotaName{Name: u.Quota, Counts: capacity.Resource(u.Counts)}, AtLeast: u.AtLeast, Until: u.Until.At(),
			})
		}
	}
	return quotas
}

// Watch observes the Machines in the management cluster's cache that owns accepts. Call it once.
func (p *Provider) Watch(ctx context.Context, management cache.Cache, owns func(client.Object) bool) error {
	_, err := informer.WatchMachines(ctx, management, owns, func(m *clusterv1.Machine) {
		p.ObserveMachine(v1alpha1.NodeClaimOf(m), annotation.MachineOf(m).Machine)
	}, func(m *clusterv1.Machine) { p.ForgetMachine(v1alpha1.NodeClaimOf(m)) })
	return err
}
