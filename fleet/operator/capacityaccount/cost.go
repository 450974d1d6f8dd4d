// SPDX-License-Identifier: Apache-2.0

package capacityaccount

import (
	"github.com/autonode-io/autonode/fleet/conversion"
	"github.com/autonode-io/autonode/fleet/cost"
)

// Cost returns the costs of an account's machines, by the clusters' namespaces and names; nil until they are counted. Don't modify it.
func (c *Controller) Cost(account string) *cost.Report {
	report, _ := c.reports.Load(account)
	counted, _ := report.(*cost.Report)
	return counted
}

// spend sums up the costs of the machines of the account's clusters.
func (r *reconciliation) spend() {
	r.spending = cost.Of(r.costs, r.account.commitments, conversion.ReservationsAt(&r.found.Spec, r.now))
	r.reports.Store(r.found.Name, r.spending)
}
