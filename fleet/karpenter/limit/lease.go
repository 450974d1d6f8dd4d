// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"context"
	"errors"
	"time"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/fleet/conversion"
	"github.com/autonode-io/autonode/fleet/division"
	"github.com/autonode-io/autonode/karpenter/providers/offering"
)

// ErrUnserved is returned by a Source where leases aren't served, or this program may not read them: an operator that is
// older than this program grants none.
var ErrUnserved = errors.New("leases aren't served")

// Source of the lease and the Machines.
type Source interface {
	// Cached returns the lease as the cache has it; nil for none.
	Cached(ctx context.Context) (*Lease, error)
	// Live returns the lease as the API server has it; nil for none. The error may wrap ErrUnserved.
	Live(ctx context.Context) (*Lease, error)
	// Machines returns what the cluster's Machines take, by the names of their NodeClaims, as the API server has them.
	Machines(ctx context.Context) (map[string]capacity.Machine, error)
	// Machine returns what one takes, or false if the API server has none of that name.
	Machine(ctx context.Context, name string) (capacity.Machine, bool, error)
	// First reports whether no other process was ever elected.
	First(ctx context.Context) (bool, error)
}

// Lease is what this cluster's CapacityLease declares.
type Lease struct {
	division.Lease
	ResourceVersion string
	// Generation of the object.
	Generation int64
	// Account identifies the account that grants it. Without one the lease limits nothing.
	Account string
	// AccountName is the account's name.
	AccountName string
	Rules       []division.Rule
	// Expires is when pools end, by name.
	Expires     map[string]time.Time
	Commitments conversion.Committed
	Unavailable []division.Unavailable
	// Quotas of the infrastructure that other clusters report as exhausted.
	Quotas []offering.ClosedQuota
	// ReclaimGracePeriod is how long the cluster has to return what Reclaims has.
	ReclaimGracePeriod time.Duration
	// Status is the report that was written last.
	Status autonodev1alpha1.CapacityLeaseStatus
}

// limits reports whether the lease changes anything. Before the first grant, no amount means anything.
func (l *Lease) limits() bool {
	return l.Sequence > 0 && l.Account != "" && (len(l.Rules) > 0 || len(l.Commitments.Commitments) > 0 || len(l.Unavailable) > 0)
}
