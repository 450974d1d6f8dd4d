// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"maps"
	"slices"

	"github.com/autonode-io/autonode/fleet/conversion"
	"github.com/autonode-io/autonode/fleet/division"
)

// Reclaims returns what the cluster has to return, by pool, also what it has returned already.
func (p *Provider) Reclaims() []division.Reclaim {
	if !p.Limits() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lease == nil {
		return nil
	}
	var reclaims []division.Reclaim
	for _, pool := range slices.Sorted(maps.Keys(p.steps)) {
		reclaims = append(reclaims, division.Reclaim{
			Pool: pool, Account: p.lease.AccountName, For: p.lease.ReclaimedFor[pool], Steps: p.steps[pool],
			Excess: max(0, p.holder.Used(pool)-p.lease.Reclaims[pool]),
		})
	}
	return reclaims
}

// follow computes the deadlines of what the lease reclaims. A process begins with those in the lease's status. p.mu must be held.
func (p *Provider) follow(lease *Lease) {
	before := p.steps
	if before == nil {
		before = conversion.ReclaimSteps(&lease.Status)
	}
	p.steps = map[string][]division.Step{}
	for pool, keep := range lease.Reclaims {
		p.steps[pool] = division.Follow(before[pool], keep, p.Clock.Now(), lease.ReclaimGracePeriod)
	}
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
