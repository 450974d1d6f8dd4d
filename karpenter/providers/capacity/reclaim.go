// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/autonode-io/autonode/capacity"
)

// Reclaim is what the cluster has to return of a pool.
type Reclaim struct {
	// Pool and Account are names.
	Pool, Account string
	// For are the clusters that request it.
	For []string
	// Steps, each with less to keep and a later deadline. There is at least one.
	Steps []capacity.Reclaim
	// Excess is what is to be returned yet.
	Excess int64
}

// By is the deadline that comes next, or has passed.
func (r *Reclaim) By() time.Time { return r.Steps[0].By }

// Reclaims returns what the cluster has to return, by pool, also what it has returned already.
func (p *Provider) Reclaims() []Reclaim {
	if !p.Limits() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lease == nil {
		return nil
	}
	var reclaims []Reclaim
	for _, pool := range slices.Sorted(maps.Keys(p.lease.Reclaims)) {
		steps := p.lease.Reclaims[pool]
		reclaims = append(reclaims, Reclaim{
			Pool: pool, Account: p.lease.AccountName, For: p.lease.ReclaimedFor[pool], Steps: steps,
			Excess: max(0, p.holder.Spent(pool)-steps[len(steps)-1].Keep),
		})
	}
	return reclaims
}

// Taken returns what a NodeClaim's machine takes of each pool.
func (p *Provider) Taken(nodeClaim string) capacity.Amounts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.holder.Charges(nodeClaim))
}

// CanReclaim reports whether the lease leaves nothing of a reservation of which a part is guaranteed to the cluster, and lent.
func (p *Provider) CanReclaim() bool {
	return p.hasPool(func(name string, pool *pool) bool {
		return pool.Counted && pool.Left <= 0 && p.holder.Spent(name) < p.lease.Reclaimable[name]
	})
}

// Reclaimable returns how many machines in a reservation the cluster may request although other clusters use it.
func (p *Provider) Reclaimable(m capacity.Machine) int {
	if !p.InTime(m) {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	room := int64(math.MaxInt32)
	for name, amount := range p.charges(m) {
		if pool, ok := p.pools[name]; ok && pool.Counted {
			room = min(room, (p.lease.Reclaimable[name]-p.holder.Spent(name))/amount)
		}
	}
	return int(max(0, room))
}
