// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"cmp"
	"slices"

	"github.com/autonode-io/autonode/capacity"
)

// running is an ask's machine as commitments see it.
func (a *ask) running() capacity.Running {
	return capacity.Running{Offering: a.machine.Offering, Price: a.list, VCPUs: a.machine.VCPUs, Memory: a.machine.Memory}
}

// price records what a machine of an offering is for commitments. A reserved one never takes from what is unused: it is billed whether
// it runs or not. p.mu must be held.
func (p *Provider) price(a *ask) {
	if a.machine.Reservation == "" {
		p.priced[countedOf(&a.machine.Offering)] = a.running()
	}
}

// commit subtracts from what is unused of the lease's commitments what this cluster has launched since the operator counted. Offers
// have to be computed again if it reports a change. p.mu must be held.
func (p *Provider) commit() (changed bool) {
	before := p.committed
	p.committed = nil
	if p.lease != nil {
		p.committed = p.lease.Commitments.resumed
	}
	if p.committed == nil || !slices.ContainsFunc(p.committed.Covers(), func(c capacity.Cover) bool { return c.Left > 0 }) {
		return before != p.committed
	}
	var since []capacity.Group
	for group, count := range p.counts {
		if more := count - p.lease.Commitments.Counted[group]; more > 0 {
			if m, priced := p.priced[group]; priced {
				since = append(since, capacity.Group{Running: m, Count: more})
			}
		}
	}
	if len(since) == 0 {
		return before != p.committed
	}
	slices.SortFunc(since, func(a, b capacity.Group) int {
		return cmp.Or(cmp.Compare(a.InstanceType, b.InstanceType), cmp.Compare(a.Zone, b.Zone), cmp.Compare(a.CapacityType, b.CapacityType))
	})
	p.committed = p.committed.Less(since)
	return before == nil || !before.Equal(p.committed)
}

// countOwn counts a launch as what its Machine is, or would be. p.mu must be held.
func (p *Provider) countOwn(l *launch) {
	var is counted
	switch {
	case l.exists:
		is = countedOf(&l.machine.Offering)
	case len(l.tried) > 0:
		is = countedOf(&l.tried[len(l.tried)-1].Offering)
	}
	if is == l.counted {
		return
	}
	p.uncount(l)
	l.counted = is
	if is != (counted{}) {
		p.counts[is]++
	}
	p.recommit()
}

// uncount counts a launch no more. p.mu must be held.
func (p *Provider) uncount(l *launch) {
	if l.counted == (counted{}) {
		return
	}
	if p.counts[l.counted]--; p.counts[l.counted] <= 0 {
		delete(p.counts, l.counted)
	}
	l.counted = counted{}
}

// recommit computes offers again whose prices have changed by a launch. p.mu must be held.
func (p *Provider) recommit() {
	if p.lease == nil || p.lease.Commitments.resumed == nil || !p.commit() {
		return
	}
	changed := map[string]bool{}
	now := p.Clock.Now()
	for _, a := range p.asks {
		p.recomputeOffer(a, now, changed)
	}
	p.record(changed)
}
