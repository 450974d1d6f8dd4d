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
	for i := range p.lease.Commitments.Commitments {
		if !p.covers(i) {
			names = append(names, autonodev1alpha1.CommitmentName(p.lease.Commitments.Commitments[i].Name))
		}
	}
	slices.Sort(names)
	return names
}

// covers reports whether the lease's commitment with an index covers an offering. p.mu must be held.
func (p *Provider) covers(commitment int) bool {
	for _, a := range p.asks {
		if p.committed.CoveredBy(commitment, &a.machine) {
			return true
		}
	}
	return false
}
