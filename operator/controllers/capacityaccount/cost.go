// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"sync"

	"github.com/autonode-io/autonode/capacity/conversion"
	"github.com/autonode-io/autonode/capacity/cost"
)

// spending is what the machines of each account cost, by its name, as they were last counted.
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

// Cost returns what the machines of an account cost, by the clusters' namespaces and names; nil until they are counted. Don't modify it.
func (c *Controller) Cost(account string) *cost.Report {
	c.spent.mu.Lock()
	defer c.spent.mu.Unlock()
	return c.spent.reports[account]
}

// spend sums up what the machines of the account's clusters cost.
func (r *reconciliation) spend() {
	r.spending = cost.Of(r.costs, r.account.commitments, conversion.ReservationsAt(&r.found.Spec, r.now))
	r.spent.set(r.found.Name, r.spending)
}
