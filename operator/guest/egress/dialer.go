// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"context"
	"errors"
	"net"
	"sync"

	"k8s.io/utils/clock"
)

var (
	// errOtherServer is the error of a connection to another server than the client's, such as a redirect's.
	errOtherServer = errors.New("the operator connects to the kubeconfig's server alone")
	// errUnreachable is the error of a failed connection. It doesn't say why, like the one of [Policy.Check].
	errUnreachable = errors.New("the server can't be connected to")
)

// Dialer connects clients to servers that tenants name. Each client has one server at a time and a Budget of its own.
// The Dialer refuses other servers, and addresses that the policy doesn't allow.
type Dialer struct {
	policy *Policy
	budget Budget
	clock  clock.Clock

	mu      sync.Mutex
	targets map[string]*target // by the client's name
}

// target is a server that a client may connect to.
type target struct {
	address   string
	forbidden bool
	allowance *allowance
}

// DialFunc is the type of rest.Config's Dial.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// NewDialer returns a Dialer without clients.
func NewDialer(policy *Policy, budget Budget) *Dialer {
	return newDialer(policy, budget, clock.RealClock{})
}

func newDialer(policy *Policy, budget Budget, clk clock.Clock) *Dialer {
	return &Dialer{policy: policy, budget: budget.orDefault(), clock: clk, targets: map[string]*target{}}
}

// To returns a function that dials a client's connections to a server, as host:port. An earlier one, for another server of the client,
// connects no more.
func (d *Dialer) To(client, address string) DialFunc {
	d.mu.Lock()
	defer d.mu.Unlock()
	known := d.targets[client]
	if known == nil {
		known = &target{allowance: newAllowance(d.budget, d.clock)}
		d.targets[client] = known
	}
	if known.address != address {
		known.address, known.forbidden = address, false
	}
	return func(ctx context.Context, network, requested string) (net.Conn, error) {
		return d.dial(ctx, client, known, network, requested)
	}
}

// Forget ends a client's right to connect. Open connections stay.
func (d *Dialer) Forget(client string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.targets, client)
}

// Forbidden reports whether the policy refused the server's address at the client's last attempt.
func (d *Dialer) Forbidden(client string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	known := d.targets[client]
	return known != nil && known.forbidden
}

// State reports whether a client is within its budget.
func (d *Dialer) State(client string) State {
	d.mu.Lock()
	known := d.targets[client]
	d.mu.Unlock()
	if known == nil {
		return Within
	}
	return known.allowance.state()
}

// Charge takes from a client's budget for work that its server causes and the bytes it sends don't show.
func (d *Dialer) Charge(client string, bytes int) {
	d.mu.Lock()
	known := d.targets[client]
	d.mu.Unlock()
	if known != nil {
		_, _ = known.allowance.take(bytes) // delays the next read, or fails it
	}
}

func (d *Dialer) dial(ctx context.Context, client string, to *target, network, address string) (net.Conn, error) {
	d.mu.Lock()
	permitted := d.targets[client] == to && to.address == address
	d.mu.Unlock()
	if !permitted {
		return nil, errOtherServer
	}
	if _, err := to.allowance.take(connectionCost); err != nil {
		return nil, err
	}
	connection, err := d.policy.DialContext(ctx, network, address)
	forbidden := errors.Is(err, ErrForbidden)
	d.mu.Lock()
	if to.address == address {
		to.forbidden = forbidden
	}
	d.mu.Unlock()
	switch {
	case forbidden:
		return nil, ErrForbidden
	case err != nil:
		return nil, errUnreachable
	}
	return &metered{Conn: connection, allowance: to.allowance, closed: make(chan struct{})}, nil
}
