// SPDX-License-Identifier: Apache-2.0

package division

import (
	"maps"
	"slices"
	"testing"
)

// vacancies of a cluster's machines that its process terminated before their replacements were launched.
type vacancies struct {
	// holders are the launches that vacancies are kept for, by the machine that left each.
	holders map[string]string
	// wanted are the demands of pods that ran on such machines.
	wanted map[string]string
	filled int
}

func newVacancies() vacancies {
	return vacancies{holders: map[string]string{}, wanted: map[string]string{}}
}

// terminate lets a process remove a machine before it launches the replacement.
func (u *universe) terminate(c *cluster) {
	if c.leaving || c.isCut() || !u.begin(c) || !c.process.begun {
		return
	}
	last := c.machines[len(c.machines)-1]
	names := slices.Sorted(maps.Keys(last))
	if len(names) == 0 {
		return
	}
	name := names[u.random.IntN(len(names))]
	if !c.process.holder.Tracks(name) {
		return
	}
	c.process.holder.Keep(name)
	vacancy := name
	for filled, launch := range c.holders {
		if launch == name {
			vacancy = filled // it leaves the vacancy that it was launched into
		}
	}
	c.holders[vacancy] = name
	next := maps.Clone(last)
	delete(next, name)
	c.machines = append(c.machines, next)
	pods := u.id()
	c.demand[pods], c.wanted[pods] = last[name], vacancy
	u.say("%s terminates %s first, and requires %s", c.name, name, pods)
	if u.random.IntN(8) == 0 {
		u.kill(c) // the next process keeps nothing
	}
}

// refill lets a launch take over the vacancy of the machine that its pods ran on, and returns that. One that is there is never lost.
func (u *universe) refill(c *cluster, name string) string {
	vacancy, h := c.wanted[name], c.process.holder
	switch holder := c.holders[vacancy]; {
	case holder == "":
		return ""
	case holder == name:
		if !h.Spend(name, c.demand[name], u.now) {
			u.fail("%s can't launch %s again into the vacancy of %s", c.name, name, vacancy)
		}
	case !h.IsVacant(holder) || !h.Ready(u.now):
		return ""
	case !h.SpendVacancy(name, holder, c.demand[name], u.now):
		u.fail("%s can't launch %s into the vacancy of %s", c.name, name, vacancy)
	default:
		c.holders[vacancy] = name
		c.filled++
	}
	return vacancy
}

// end lets a process keep a vacancy no longer: it is filled, or no longer needed.
func (u *universe) end(c *cluster) {
	if len(c.holders) == 0 || c.isCut() {
		return
	}
	vacancy := slices.Sorted(maps.Keys(c.holders))[u.random.IntN(len(c.holders))]
	c.process.holder.Release(c.holders[vacancy])
	delete(c.holders, vacancy)
	u.say("%s keeps the vacancy of %s no longer", c.name, vacancy)
}

// run lets five hundred things happen, each after a step of the test's.
func (u *universe) run(seed uint64, step func(i int)) {
	for i := range 500 {
		if u.lossy && i%150 == 149 {
			u.lose()
		} else {
			step(i)
		}
		if seed%3 == 0 {
			u.separate()
		}
		u.happen()
		u.check()
	}
}

func TestVacanciesOfSchedules(t *testing.T) {
	t.Run("When machines are terminated before their replacements, it should exceed no pool, lose no vacancy, and use all of it in the end", func(t *testing.T) {
		filled := 0
		for seed := range *schedules {
			u := newUniverse(t, seed, true)
			u.lossy = seed%4 == 0
			u.run(seed, func(i int) {
				switch {
				case i%4 == 0:
					u.terminate(u.any())
				case i%61 == 0:
					u.end(u.any())
				}
			})
			for _, name := range u.names {
				filled += u.clusters[name].filled
			}
			u.exhaust(Amounts{"reservation/cr-1": 1})
			u.full()
		}
		if filled < int(*schedules) {
			t.Errorf("%d vacancies were filled in %d schedules", filled, *schedules)
		}
	})
}
