// SPDX-License-Identifier: Apache-2.0

package environment

import (
	"context"
	"sync"
	"testing"

	account "github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/capacity"
)

// Lease plays a management cluster with a CapacityLease and without Machines, in which no other Karpenter ever ran. It is a capacity.Source.
type Lease struct {
	mu    sync.Mutex
	lease capacity.Lease
}

// NewLease is a lease of an account with the amounts of the rules' pools.
func NewLease(rules []account.Rule, amounts account.Amounts) *Lease {
	return &Lease{lease: capacity.Lease{Account: "account-1", Rules: rules, Lease: account.Lease{ID: "lease-1", Sequence: 1, Amounts: amounts}}}
}

// Write changes the lease, with a newer sequence, and lets a Karpenter observe it.
func (l *Lease) Write(tb testing.TB, observer *capacity.Provider, change func(*capacity.Lease)) {
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
func (l *Lease) Cached(context.Context) (*capacity.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lease := l.lease
	return &lease, nil
}

// Live implements capacity.Source.
func (l *Lease) Live(ctx context.Context) (*capacity.Lease, error) { return l.Cached(ctx) }

// First implements capacity.Source.
func (l *Lease) First(context.Context) (bool, error) { return true, nil }

// Machines implements capacity.Source.
func (l *Lease) Machines(context.Context) (machines map[string]account.Machine, replacements map[string]string, err error) {
	return map[string]account.Machine{}, nil, nil
}

// Machine implements capacity.Source.
func (l *Lease) Machine(context.Context, string) (account.Machine, bool, error) {
	return account.Machine{}, false, nil
}
