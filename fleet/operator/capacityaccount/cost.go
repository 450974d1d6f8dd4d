// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"sync"

	"github.com/autonode-io/autonode/fleet/conversion"
	"github.com/autonode-io/autonode/fleet/cost"
)

// spending is the costs of each account's machines, by its name, as they were last counted.
type spending struct {
	mu      sync.Mutex
	reports map[string]*cost.Report
}

func newSpending() *spending { return &spending{reports: map[string]*cost.Report{}} }

func (s *spending) set(account string, report *cost.Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reports[account] = report
}

func (s *spending) forget(account string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.reports, account)
}

// Cost returns the costs of an account's machines, by the clusters' namespaces and names; nil until they are counted. Don't modify it.
func (c *Controller) Cost(account string) *cost.Report {
	c.spent.mu.Lock()
	defer c.spent.mu.Unlock()
	return c.spent.reports[account]
}

// spend sums up the costs of the machines of the account's clusters.
func (r *reconciliation) spend() {
	r.spending = cost.Of(r.costs, r.account.commitments, conversion.ReservationsAt(&r.found.Spec, r.now))
	r.spent.set(r.found.Name, r.spending)
}
