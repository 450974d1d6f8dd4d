// SPDX-License-Identifier: Apache-2.0

// Package leasetest plays a management cluster with a CapacityLease for tests.
package leasetest

import (
	"context"
	"sync"
	"testing"

	"k8s.io/utils/clock"

	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/fleet/division"
	"github.com/autonode-io/autonode/fleet/karpenter/limit"
)

// Lease plays a management cluster with a CapacityLease and without Machines, in which no other Karpenter ever ran. It is a
// capacity.Source.
type Lease struct {
	// Limiter keeps to the lease.
	Limiter *limit.Provider

	mu    sync.Mutex
	lease limit.Lease
}

// NewLease is a lease of an account with the amounts of the rules' pools.
func NewLease(tb testing.TB, clk clock.PassiveClock, rules []division.Rule, amounts division.Amounts) *Lease {
	tb.Helper()
	l := &Lease{lease: limit.Lease{Account: "account-1", Rules: rules, Lease: division.Lease{ID: "lease-1", Sequence: 1, Limit: amounts}}}
	l.Limiter = limit.New(limit.Config{Clock: clk, Source: l})
	l.Write(tb, func(*limit.Lease) {})
	return l
}

// Write changes the lease, with a newer sequence, and lets its Limiter observe it.
func (l *Lease) Write(tb testing.TB, change func(*limit.Lease)) {
	tb.Helper()
	l.mu.Lock()
	l.lease.Sequence++
	change(&l.lease)
	l.mu.Unlock()
	if _, err := l.Limiter.Step(tb.Context()); err != nil {
		tb.Fatal(err)
	}
}

// Cached implements capacity.Source.
func (l *Lease) Cached(context.Context) (*limit.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lease := l.lease
	return &lease, nil
}

// Live implements capacity.Source.
func (l *Lease) Live(ctx context.Context) (*limit.Lease, error) { return l.Cached(ctx) }

// First implements capacity.Source.
func (l *Lease) First(context.Context) (bool, error) { return true, nil }

// Machines implements capacity.Source.
func (l *Lease) Machines(context.Context) (map[string]capacity.Machine, error) {
	return map[string]capacity.Machine{}, nil
}

// Machine implements capacity.Source.
func (l *Lease) Machine(context.Context, string) (capacity.Machine, bool, error) {
	return capacity.Machine{}, false, nil
}
