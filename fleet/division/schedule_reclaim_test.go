// SPDX-License-Identifier: Apache-2.0

package division

import (
	"maps"
	"slices"
	"testing"
)

// guarantee of each cluster that lends.
const guarantee = 1

// lend has a member lend what is guaranteed to it.
func (u *universe) lend(members map[string]Member, name string) {
	member := members[name]
	member.Guaranteed = Amounts{"gpus": guarantee, "reservation/cr-1": guarantee}
	members[name] = member
}

// drain lets a process remove a machine by what its cache has of the lease, which may be old, and reports whether it did.
func (u *universe) drain(c *cluster) bool {
	if c.leaving || c.isCut() || !u.begin(c) || c.process.lease >= len(c.leases) {
		return false
	}
	last := c.machines[len(c.machines)-1]
	total := used(last)
	reclaims := c.leases[c.process.lease].Reclaims
	for _, pool := range slices.Sorted(maps.Keys(reclaims)) {
		keep, _ := reclaims.Limit(pool)
		if u.lending && pool != "vcpus" && keep < guarantee {
			u.fail("%s may keep %d of %s", c.name, keep, pool)
		}
		if total[pool] <= keep {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(last)) {
			if last[name][pool] == 0 {
				continue
			}
			next := maps.Clone(last)
			delete(next, name)
			c.machines = append(c.machines, next)
			pods := u.id()
			c.demand[pods] = last[name]
			u.drained++
			u.say("%s returns %s, as it may keep %d of %s", c.name, name, keep, pool)
			return true
		}
	}
	return false
}

func TestReclaimsOfSchedules(t *testing.T) {
	t.Run("When what is guaranteed is lent and reclaimed meanwhile, it should exceed no pool, and all should have what is guaranteed to them in the end", func(t *testing.T) {
		drained := 0
		for seed := range *schedules {
			u := newUniverse(t, seed, true)
			u.lending, u.lossy = true, seed%4 == 0
			for range 10 { // one cluster borrows all of it
				u.clusters["green"].demand[u.id()] = Amounts{"reservation/cr-1": 1}
			}
			u.settle(8)
			u.run(seed, func(i int) {
				switch {
				case i%7 == 0:
					u.drain(u.any())
				case i%11 == 0:
					u.terminate(u.any())
				case i%61 == 0:
					u.end(u.any())
				}
			})
			u.exhaust(Amounts{"reservation/cr-1": 1})
			for _, name := range u.names {
				if has := used(u.clusters[name].machines[len(u.clusters[name].machines)-1])["reservation/cr-1"]; has < guarantee {
					u.fail("%s has %d of what is guaranteed to it; record %+v, retained %+v", name, has, u.records[len(u.records)-1], u.retained[len(u.retained)-1])
				}
			}
			drained += u.drained
		}
		if drained < int(*schedules)/3 {
			t.Errorf("%d machines were returned in %d schedules", drained, *schedules)
		}
	})
}
