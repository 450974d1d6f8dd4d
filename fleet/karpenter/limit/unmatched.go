// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"slices"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
)

// Unmatched returns the pools of the lease that no offering takes from, and the commitments that cover none, in order: most likely their
// selectors have a mistake. It returns none before an offering was asked for.
func (p *Provider) Unmatched() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lease == nil || len(p.asks) == 0 {
		return nil
	}
	var names []string
	for name, pool := range p.pools {
		if len(pool.asks) == 0 {
			names = append(names, name)
		}
	}
	if p.covering == nil {
		p.covering = map[string]bool{}
		for _, a := range p.asks {
			p.cover(a)
		}
	}
	for i := range p.lease.Commitments.Commitments {
		if name := p.lease.Commitments.Commitments[i].Name; !p.covering[name] {
			names = append(names, autonodev1alpha1.CommitmentName(name))
		}
	}
	slices.Sort(names)
	return names
}

// cover records which commitments cover an offering. p.mu must be held.
func (p *Provider) cover(a *ask) {
	if p.covering == nil || p.committed == nil {
		return // Unmatched computes them when it is called
	}
	m := a.running()
	for i := range p.lease.Commitments.Commitments {
		if name := p.lease.Commitments.Commitments[i].Name; !p.covering[name] && p.committed.CoveredBy(i, &m) {
			p.covering[name] = true
		}
	}
}
