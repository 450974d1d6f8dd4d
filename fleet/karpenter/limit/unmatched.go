// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"slices"

	autonodev1alpha1 "github.com/autonode-io/autonode/api/v1alpha1"
	"github.com/autonode-io/autonode/fleet/division"
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
	commitments := p.lease.Commitments.Commitments
	for i := range commitments {
		if !p.covers(division.NewCommitments(commitments[i : i+1])) {
			names = append(names, autonodev1alpha1.CommitmentName(commitments[i].Name))
		}
	}
	slices.Sort(names)
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
