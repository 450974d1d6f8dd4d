// SPDX-License-Identifier: Apache-2.0

// Package capacity has what Karpenter asks before it launches a machine, and which price the machine has: a Limiter. The default limits
// nothing; fleet/karpenter/limit keeps the cluster within its CapacityLease.
package capacity

import (
	"context"
	"strings"
	"time"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
	"github.com/autonode-io/autonode/karpenter/providers/template"
)

const (
	// GrantWait is how long a launch waits for a larger grant before it takes another offering that needs none.
	GrantWait = 15 * time.Second
	// BackOffTTL is how long nothing is expected of a pool beyond its grant after a launch has waited for GrantWait, unless more
	// is granted: the operator may be away.
	BackOffTTL = time.Minute
)

// Limiter limits which machines Karpenter may launch, and prices them, beside their infrastructure: a cluster may share reservations,
// quotas and commitments with others. It is safe for concurrent use. A launch is identified by the name of its NodeClaim.
type Limiter interface {
	// Offer returns the availability and price of an offering with this list price in US dollars an hour. From then on, Sequence changes
	// with the result.
	Offer(m capacity.Machine, list float64) capacity.Offer
	// Sequence changes whenever a result of Offer has changed. It neither locks nor allocates while nothing changes.
	Sequence() uint64
	// Since returns the instance types whose offers have changed after a sequence, or false if it isn't known any more which those are.
	Since(sequence uint64) (instanceTypes []string, known bool)
	// OnChange calls f whenever an offer changes. f must neither block nor call the Limiter.
	OnChange(f func())
	// OnGrant calls f whenever more may be allowed than before, and launches were given up because they waited for that. f must neither
	// block nor call the Limiter.
	OnGrant(f func())

	// Open returns nil once machines may be launched. Retry it.
	Open(ctx context.Context) error
	// Request reports whether a machine could be reserved for a launch, in the place of one of these vacancies or beside them. If it can't
	// yet, Request requests that, and names the pools that lack something for it, such as "reservation/cr-1". Call it again while the launch
	// waits. Once a request is refused, no further grant of these pools is expected for BackOffTTL, or until more is granted.
	Request(name string, m capacity.Machine, vacancies ...string) (grant Grant, lacking string)
	// Reserve reserves a machine for a launch, and returns the function that ends the attempt to create it, and the vacancy that the launch
	// has taken over; nil if there is too little. Only then may the Machine be created.
	Reserve(name string, m capacity.Machine, vacancies ...string) (done func(), vacancy string)
	// Await waits until more may be allowed than before, at most for timeout.
	Await(ctx context.Context, timeout time.Duration)
	// Exhausted describes the pools of which nothing is left; empty if there are none.
	Exhausted() string
	// Abandon records that a launch has failed for good. Its reservation ends once its Machine is known not to exist. requested: another
	// launch will be tried for the same pods, so that the request still counts.
	Abandon(name string, requested bool)

	// Keep keeps the reservation of a NodeClaim's Machine when that goes, until a launch takes this vacancy over, or Release.
	Keep(name string)
	// Release ends the reservation of a vacancy.
	Release(name string)
	// FitsWithout reports whether a machine could be launched, maybe after more was granted, if a NodeClaim's Machine went and its
	// reservation was kept.
	FitsWithout(name string, m capacity.Machine) bool
}

// Grant is the answer to a request.
type Grant uint8

const (
	// GrantImpossible: no more can be granted, or the machine takes from a pool that has ended.
	GrantImpossible Grant = iota
	// GrantAwaited: more may be granted within GrantWait.
	GrantAwaited
	// GrantRefused: no more was granted within GrantWait.
	GrantRefused
	// Granted: nothing is lacking.
	Granted
)

// Unlimited is the Limiter of a cluster that shares nothing.
type Unlimited struct{}

var _ Limiter = Unlimited{}

// Offer implements Limiter.
func (Unlimited) Offer(_ capacity.Machine, list float64) capacity.Offer {
	return capacity.Offer{Available: true, Remaining: capacity.Unlimited, Price: list, Saving: list}
}

// Sequence implements Limiter.
func (Unlimited) Sequence() uint64 { return 0 }

// Since implements Limiter.
func (Unlimited) Since(uint64) ([]string, bool) { return nil, true }

// OnChange implements Limiter.
func (Unlimited) OnChange(func()) {}

// OnGrant implements Limiter.
func (Unlimited) OnGrant(func()) {}

// Open implements Limiter.
func (Unlimited) Open(context.Context) error { return nil }

// Request implements Limiter.
func (Unlimited) Request(string, capacity.Machine, ...string) (Grant, string) { return Granted, "" }

// Reserve implements Limiter.
func (Unlimited) Reserve(string, capacity.Machine, ...string) (func(), string) { return func() {}, "" }

// Await implements Limiter. It isn't called, because no request waits.
func (Unlimited) Await(context.Context, time.Duration) {}

// Exhausted implements Limiter.
func (Unlimited) Exhausted() string { return "" }

// Abandon implements Limiter.
func (Unlimited) Abandon(string, bool) {}

// Keep implements Limiter.
func (Unlimited) Keep(string) {}

// Release implements Limiter.
func (Unlimited) Release(string) {}

// FitsWithout implements Limiter.
func (Unlimited) FitsWithout(string, capacity.Machine) bool { return true }

// MachineOf returns what a machine takes that is launched as an offering of a template, with what that declares. GPUs are the devices of
// all resources whose name ends with /gpu, such as nvidia.com/gpu.
func MachineOf(key offering.Key, tmpl *template.Template) capacity.Machine {
	declared := tmpl.Capacity
	bounded := func(amount int64) int64 { return min(max(amount, 0), autonodev1alpha1.MaxCharge) }
	m := capacity.Machine{
		Offering: capacity.Offering{
			InstanceType: key.InstanceType, Zone: key.Zone, CapacityType: key.CapacityType, Reservation: key.Reservation,
			Catalog: tmpl.Source.Catalog(),
		},
		VCPUs:  bounded(declared.Cpu().MilliValue()),
		Memory: bounded(declared.Memory().Value()),
	}
	for name, quantity := range declared {
		if strings.HasSuffix(string(name), "/gpu") {
			m.GPUs = bounded(m.GPUs + bounded(quantity.Value()))
		}
	}
	return m
}
