// SPDX-License-Identifier: Apache-2.0

package division

import (
	"testing"
	"time"
)

// partition separates a Karpenter or an operator from the management cluster's API server.
type partition struct {
	// late are the writes that arrive after all, or not, when the partition ends. It isn't nil meanwhile.
	late []func()
}

func (p *partition) isCut() bool { return p.late != nil }

// cut separates a cluster's Karpenter from the API server. The process reads nothing, and what it sends stays on the way. It goes on
// by what it has read.
func (u *universe) cut(c *cluster) {
	if c.isCut() || !c.gone.IsZero() {
		return
	}
	c.late = []func(){}
	u.say("%s is cut off", c.name)
}

// expire drops what was sent so long ago that nothing delivers it any more.
func (c *cluster) expire(now time.Time) {
	late := c.inFlight[:0]
	for _, created := range c.inFlight {
		if now.Before(created.until) {
			late = append(late, created)
		}
	}
	c.inFlight = late
	reports := c.reports[:0]
	for _, report := range c.reports {
		if now.Before(report.until) {
			reports = append(reports, report)
		}
	}
	c.reports = reports
}

// rejoin ends a partition. What is on the way still is delivered at once, or lost.
func (u *universe) rejoin(c *cluster) {
	if !c.isCut() {
		return
	}
	c.late = nil
	u.say("%s is back", c.name)
	for i := len(c.inFlight) - 1; i >= 0; i-- {
		u.deliver(c, i, u.random.IntN(2) == 0)
	}
	for i := len(c.reports) - 1; i >= 0; i-- {
		if u.random.IntN(2) == 0 {
			u.deliverReport(c, i)
		} else {
			c.reports = append(c.reports[:i], c.reports[i+1:]...)
		}
	}
}

// cutOperator separates an operator from the API server, with a decision on the way.
func (u *universe) cutOperator(o *operator) {
	if o.isCut() {
		return
	}
	version, decision := u.computeDecision(true)
	o.late = []func(){func() { u.record(o, version, decision) }}
	u.say("an operator is cut off")
}

// rejoinOperator ends a partition. The decision is recorded if nothing else was meanwhile, or lost.
func (u *universe) rejoinOperator(o *operator) {
	late := o.late
	o.late = nil
	for _, write := range late {
		if u.random.IntN(2) == 0 {
			write()
		}
	}
}

// heal ends all partitions.
func (u *universe) heal() {
	for _, name := range u.names {
		u.rejoin(u.clusters[name])
	}
	for _, o := range u.operators {
		u.rejoinOperator(o)
	}
}

// separate begins a partition or ends one. One lasts for some fifty events, which is minutes in most schedules.
func (u *universe) separate() {
	c, o := u.any(), u.operators[u.random.IntN(len(u.operators))]
	switch u.random.IntN(50) {
	case 0, 1:
		u.cut(c)
	case 2, 3, 4:
		u.rejoin(c)
	case 5:
		u.cutOperator(o)
	case 6, 7:
		u.rejoinOperator(o)
	}
}

func TestPartitionsOfSchedules(t *testing.T) {
	t.Run("When clusters and operators are cut off meanwhile, they should never exceed a pool, and use all of it in the end", func(t *testing.T) {
		apart, launched := 0, 0
		for seed := range *schedules / 2 {
			u := newUniverse(t, seed, true)
			for range 500 {
				u.separate()
				u.happen()
				u.check()
				for _, name := range u.names {
					if c := u.clusters[name]; c.isCut() {
						apart++
						launched += len(c.inFlight)
					}
				}
			}
			u.exhaust(Amounts{"reservation/cr-1": 1}, Amounts{"vcpus": 4})
			u.full()
		}
		if apart == 0 || launched == 0 {
			t.Errorf("clusters were cut off for %d events, with %d requests on the way", apart, launched)
		}
	})
}
