// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"maps"
	"slices"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/fleet/division"
)

// commit takes the lease's commitments beside the machines of all clusters, with what this cluster has launched and removed since the
// operator counted. Offers have to be computed again if it reports a change. p.mu must be held.
func (p *Provider) commit() (changed bool) {
	if p.lease == nil || len(p.lease.Commitments.Commitments) == 0 {
		changed = p.committed != nil
		p.committed, p.since = nil, nil
		return changed
	}
	leased := &p.lease.Commitments
	committed := division.NewCommitments(leased.Commitments)
	since, machines := map[capacity.Offering]int64{}, map[capacity.Offering]capacity.Priced{}
	for o, count := range leased.Counted {
		since[o] = -count
	}
	counts := map[capacity.Offering]int64{}
	for _, l := range p.launches {
		counts[l.offering()]++
	}
	for o, count := range counts { // a reserved one has no price here: it is billed whether it runs or not
		if m, priced := p.priced[o]; priced && committed.Covered(&m) {
			o = committed.Distinct(o)
			since[o] += count
			machines[o] = m
		}
	}
	maps.DeleteFunc(since, func(_ capacity.Offering, count int64) bool { return count == 0 })
	if p.committed != nil && p.committedOf == p.lease && maps.Equal(since, p.since) {
		return false
	}
	for _, g := range leased.Machines {
		committed.Add(g)
	}
	for o, count := range since {
		if count < 0 {
			committed.Remove(o, -count)
		} else {
			committed.Add(division.Group{Priced: machines[o], Count: count})
		}
	}
	p.committed, p.committedOf, p.since = committed, p.lease, since
	return true
}

// offering is that of a launch's Machine, or of the last attempt to create one.
func (l *launch) offering() (o capacity.Offering) {
	switch {
	case l.exists:
		o = l.machine.Offering
	case len(l.tried) > 0:
		o = l.tried[len(l.tried)-1].Offering
	}
	return o
}

// recommit computes offers again if a launch has changed their prices. p.mu must be held.
func (p *Provider) recommit() {
	if p.committed != nil && p.commit() {
		p.recomputeAll(p.Clock.Now())
	}
}

// Unmatched returns the pools of the lease that no offering takes from, and the commitments that cover none, in order: most likely their
// selectors have a mistake. It returns none before an offering was asked for.
func (p *Provider) Unmatched() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.lease == nil, len(p.asks) == 0:
		return nil
	case p.unmatchedOf == p.lease: // each report asks for it
		return p.unmatched
	}
	var names []string
	for name, pool := range p.pools {
		if len(pool.asks) == 0 {
			names = append(names, name)
		}
	}
	commitments := p.lease.Commitments.Commitments
	for i := range commitments {
		if !p.covers(division.NewCommitments(commitments[i : i+1])) {
			names = append(names, autonodev1alpha1.CommitmentName(commitments[i].Name))
		}
	}
	slices.Sort(names)
	p.unmatched, p.unmatchedOf = names, p.lease
	return names
}

// covers reports whether commitments cover an offering. p.mu must be held.
func (p *Provider) covers(c *division.Commitments) bool {
	for _, a := range p.asks {
		if c.Covered(&a.machine) {
			return true
		}
	}
	return false
}
