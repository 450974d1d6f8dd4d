// SPDX-License-Identifier: Apache-2.0

package environment

import (
	"context"
	"sync"
	"testing"

	"github.com/autonode-io/autonode/capacity"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
)

// Lease plays a management cluster with a CapacityLease and without Machines, in which no other Karpenter ever ran. It is a
// capacity.Source.
type Lease struct {
	mu    sync.Mutex
	lease capacityprovider.Lease
}

// NewLease is a lease of an account with the amounts of the rules' pools.
func NewLease(rules []capacity.Rule, amounts capacity.Amounts) *Lease {
	return &Lease{lease: capacityprovider.Lease{Account: "account-1", Rules: rules, Lease: capacity.Lease{ID: "lease-1", Sequence: 1, Amounts: amounts}}}
}

// Write changes the lease, with a newer sequence, and lets a Karpenter observe it.
func (l *Lease) Write(tb testing.TB, observer *capacityprovider.Provider, change func(*capacityprovider.Lease)) {
	tb.Helper()
	l.mu.Lock()
	l.lease.Sequence++
	change(&l.lease)
	l.mu.Unlock()
	if _, err := observer.Step(tb.Context()); err != nil {
		tb.Fatal(err)
	}
}

// Cached implements capacity.Source.
func (l *Lease) Cached(context.Context) (*capacityprovider.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lease := l.lease
	return &lease, nil
}

// Live implements capacity.Source.
func (l *Lease) Live(ctx context.Context) (*capacityprovider.Lease, error) { return l.Cached(ctx) }

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
