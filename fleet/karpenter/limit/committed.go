// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"maps"

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
	for o, count := range p.counts {
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

// countOwn counts a launch as what its Machine is, or would be. A reserved one is billed whether it runs or not. p.mu must be held.
func (p *Provider) countOwn(l *launch) {
	var is capacity.Offering
	switch {
	case l.exists:
		is = l.machine.Offering
	case len(l.tried) > 0:
		is = l.tried[len(l.tried)-1].Offering
	}
	if is.Reservation != "" {
		is = capacity.Offering{}
	}
	if is == l.counted {
		return
	}
	p.uncount(l)
	l.counted = is
	if is != (capacity.Offering{}) {
		p.counts[is]++
	}
	p.recommit()
}

// uncount counts a launch no more. p.mu must be held.
func (p *Provider) uncount(l *launch) {
	if l.counted == (capacity.Offering{}) {
		return
	}
	if p.counts[l.counted]--; p.counts[l.counted] <= 0 {
		delete(p.counts, l.counted)
	}
	l.counted = capacity.Offering{}
}

// recommit computes offers again whose prices have changed by a launch. p.mu must be held.
func (p *Provider) recommit() {
	if p.committed == nil || !p.commit() {
		return
	}
	changed := map[string]bool{}
	now := p.Clock.Now()
	for _, a := range p.asks {
		p.recomputeOffer(a, now, changed)
	}
	p.record(changed)
}
