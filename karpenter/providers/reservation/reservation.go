// SPDX-License-Identifier: Apache-2.0

// Package reservation reserves what a launch needs before its Machine is created: one of the machines that its template may have, one of
// the infrastructure's reservation, and what the Machine takes from the cluster's CapacityLease.
package reservation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/autonode-io/autonode/capacity"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/instancetype"
	"github.com/autonode-io/autonode/karpenter/providers/inventory"
	"github.com/autonode-io/autonode/karpenter/providers/vacancy"
)

const (
	// grantTimeout is how long a launch waits for a larger grant before Karpenter deletes the NodeClaim and plans again.
	grantTimeout = 2 * time.Second
	// abandonTimeout is how long a launch that has failed waits for the API server's answer whether it has a Machine.
	abandonTimeout = 2 * time.Second
)

// ErrFull is returned when a template or a reservation has as many machines as it may have, or the lease has no room and the operator
// can't grant more.
var ErrFull = errors.New("no further machine may be launched")

// WaitingError is returned while the operator may grant more of the pools that leave too little.
type WaitingError struct{ Pools, InstanceType string }

// Error returns what the launch waits for.
func (e *WaitingError) Error() string {
	return fmt.Sprintf("the hosted cluster's CapacityLease has too little left of %s for instance type %s; waiting for the operator to grant more",
		e.Pools, e.InstanceType)
}

// UngrantedError is returned once the operator hasn't granted more within capacity.GrantWait. Nothing more is expected of the pools for
// a while.
type UngrantedError struct{ Pools string }

// Error returns what the operator hasn't granted.
func (e *UngrantedError) Error() string {
	return fmt.Sprintf("the operator hasn't granted more of %s within %s", e.Pools, capacityprovider.GrantWait)
}

// Provider of reservations.
type Provider struct {
	// Inventory enforces the maximum sizes of templates, and of reservations of the infrastructure.
	Inventory *inventory.Inventory
	// Capacity keeps the cluster within its CapacityLease.
	Capacity *capacityprovider.Provider
	// Vacancies are held for the replacements of nodes that were terminated first.
	Vacancies *vacancy.Keeper
}

// Open returns nil once it is known what may be reserved; see capacity.Provider.Open.
func (p *Provider) Open(ctx context.Context) error {
	return p.Capacity.Open(ctx)
}

// Reserve reserves what a NodeClaim's machine of a choice needs. Only then may the Machine be created, and Done is to be called afterwards.
// The error is a *WaitingError or an *UngrantedError, or wraps ErrFull or inventory.ErrNotCounted.
func (p *Provider) Reserve(nodeClaim *karpv1.NodeClaim, choice *instancetype.Choice) error {
	needed := capacityprovider.MachineOf(choice.Key, choice.Template)
	nodePool := nodeClaim.Labels[karpv1.NodePoolLabelKey]
	vacancies := p.Vacancies.Holders(nodePool)
	if !p.Capacity.Fits(nodeClaim.Name, needed, vacancies...) {
		return p.request(nodeClaim.Name, needed)
	}
	if err := p.acquire(nodeClaim.UID, nodePool, choice); err != nil {
		return err
	}
	if !p.Capacity.Spend(nodeClaim.Name, needed, vacancies...) {
		return ErrFull // another launch has just spent it
	}
	choice.Replaces = p.Vacancies.Fill(nodeClaim, choice.Template.Source.Annotation(), choice.Key.Reservation)
	return nil
}

// request requests a larger grant from the operator, and reports what follows for the launch.
func (p *Provider) request(nodeClaim string, needed capacity.Machine) error {
	since, possible := p.Capacity.Request(nodeClaim, needed)
	if !possible {
		return ErrFull
	}
	pools := p.Capacity.Lacking(needed)
	if p.Capacity.Clock.Since(since) < capacityprovider.GrantWait {
		return &WaitingError{Pools: pools, InstanceType: needed.InstanceType}
	}
	p.Capacity.BackOffPools(needed)
	return &UngrantedError{Pools: pools}
}

// acquire counts the machine with those of its reservation and of its template. What is held for another NodePool isn't to be had.
func (p *Provider) acquire(nodeClaim types.UID, nodePool string, choice *instancetype.Choice) error {
	if choice.Key.Reservation != "" {
		most := choice.ReservationCount - p.Vacancies.OthersIn(nodePool, choice.Key.Reservation)
		if acquired, err := p.Inventory.AcquireReserved(nodeClaim, choice.Key.Reservation, most); !acquired {
			return cmp.Or(err, ErrFull)
		}
	}
	most, limited := choice.Template.Maximum()
	if !limited {
		return nil
	}
	source := choice.Template.Source.Annotation()
	if acquired, err := p.Inventory.Acquire(nodeClaim, source, most-p.Vacancies.OthersOf(nodePool, source)); !acquired {
		return cmp.Or(err, ErrFull)
	}
	return nil
}

// Await waits until the operator may have granted more, for a short time.
func (p *Provider) Await(ctx context.Context) { p.Capacity.Await(ctx, grantTimeout) }

// Shortage names the pools of which the lease leaves nothing, to append to a message; empty if there are none.
func (p *Provider) Shortage() string {
	if pools := p.Capacity.Exhausted(); pools != "" {
		return "; the hosted cluster's CapacityLease leaves nothing of " + pools
	}
	return ""
}

// Done records that an attempt to create the Machine of a successful Reserve has ended.
func (p *Provider) Done(nodeClaim *karpv1.NodeClaim) { p.Capacity.Done(nodeClaim.Name) }

// Abandon releases what a launch has reserved that fails for good because of an error. If it was waiting for a larger grant, its request
// stays for the next launch of the same pods.
func (p *Provider) Abandon(ctx context.Context, nodeClaim *karpv1.NodeClaim, err error) {
	ctx, cancel := context.WithTimeout(ctx, abandonTimeout)
	defer cancel()
	p.Inventory.Abandon(ctx, nodeClaim)
	p.Vacancies.Release(nodeClaim.Name)
	var waiting *WaitingError
	if errors.As(err, &waiting) {
		p.Capacity.Leave(nodeClaim.Name)
	} else {
		p.Capacity.Abandon(nodeClaim.Name)
	}
}

// Release releases what was reserved for a NodeClaim that has no Machine any more, or never will.
func (p *Provider) Release(nodeClaim *karpv1.NodeClaim) {
	p.Inventory.Release(nodeClaim.UID)
	p.Vacancies.Release(nodeClaim.Name)
	p.Capacity.Abandon(nodeClaim.Name)
}
