// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"maps"

	"github.com/autonode-io/autonode/fleet/division"
)

// Reclaims returns those of the lease, with deadlines, and the account's name. Don't modify them.
func (p *Provider) Reclaims() (account string, reclaims division.Reclaims) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.Limits() || p.lease == nil {
		return "", nil
	}
	return p.lease.AccountName, p.reclaims
}

// Taken returns what a NodeClaim's machine takes of each pool.
func (p *Provider) Taken(nodeClaim string) division.Amounts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.holder.Charges(nodeClaim))
}

// CanReclaim reports whether the lease leaves nothing of a reservation of which the cluster may reclaim machines.
func (p *Provider) CanReclaim() bool {
	return p.hasPool(func(name string, pool *pool) bool {
		return pool.Counted && pool.Left <= 0 && p.holder.Used(name) < p.lease.Attainable[name]
	})
}
