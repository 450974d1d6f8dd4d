// SPDX-License-Identifier: Apache-2.0

package division

import "testing"

// leave takes a cluster out of the account, as the deletion of its HostedCluster does: Karpenter drains its nodes.
func (u *universe) leave(c *cluster) {
	for name := range c.demand {
		c.process.holder.Abandon(name, u.now)
	}
	c.leaving = true
	clear(c.demand)
	u.say("%s leaves", c.name)
}

// depart removes what is left of a cluster that leaves. Its Karpenter ends when no Machine is left and no request is under way, and its
// lease goes with its namespace.
func (u *universe) depart(c *cluster) {
	if !c.leaving || !c.gone.IsZero() {
		return
	}
	u.remove(c)
	if len(c.machines[len(c.machines)-1]) == 0 && len(c.inFlight) == 0 {
		c.gone, c.reports = u.now, nil
		u.say("%s is gone", c.name)
	}
}

// checkMembers checks what check does not: that a cluster that is gone has no Machines.
func (u *universe) checkMembers() {
	u.check()
	for _, c := range u.clusters {
		if !c.gone.IsZero() && len(mayCome(c)) > 0 {
			u.fail("%s is gone and takes %v", c.name, mayCome(c))
		}
	}
}

func TestMembersOfSchedules(t *testing.T) {
	t.Run("When clusters join and leave meanwhile, they should never exceed a pool, and use all of it in the end", func(t *testing.T) {
		gone := 0
		for seed := range *schedules / 4 {
			u := newUniverse(t, seed, true)
			for i := range 500 {
				switch {
				case i == 100 || i == 250:
					u.join(map[int]string{100: "amber", 250: "violet"}[i])
				case i == 175 || i == 325:
					if c := u.any(); !c.leaving {
						u.leave(c)
					}
				case i%5 == 0:
					u.depart(u.any())
				}
				u.happen()
				u.checkMembers()
			}
			u.exhaust(Amounts{"reservation/cr-1": 1}, Amounts{"reservation/cr-1": 1})
			u.full()
			for _, c := range u.clusters {
				if !c.gone.IsZero() {
					gone++
				}
			}
		}
		if gone == 0 {
			t.Error("no cluster was ever gone")
		}
	})
}
