// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"maps"
	"slices"
	"testing"
)

// vacancies of a cluster's machines that were terminated before their replacements were launched.
type vacancies struct {
	// kept is what is written down of each, by the machine that left it. It outlives processes.
	kept map[string]Amounts
	// replaces is what machines say of themselves: the one whose vacancy they fill.
	replaces map[string]string
	// holds is which launch a process keeps a vacancy for, if that isn't the machine that left it.
	holds map[string]string
	// wanted are the demands of pods that ran on such machines.
	wanted map[string]string
}

func newVacancies() vacancies {
	return vacancies{kept: map[string]Amounts{}, replaces: map[string]string{}, holds: map[string]string{}, wanted: map[string]string{}}
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
	charges, counts := c.process.holder.Keep(name)
	if !counts {
		return
	}
	vacancy := name
	if filled := c.replaces[name]; c.kept[filled] != nil {
		vacancy, c.holds[filled] = filled, name // it leaves what it was launched into
	} else {
		c.kept[name] = charges
	}
	if u.random.IntN(8) == 0 {
		u.kill(c) // before it removes the machine
		return
	}
	next := maps.Clone(last)
	delete(next, name)
	c.machines = append(c.machines, next)
	pods := u.id()
	c.demand[pods], c.wanted[pods] = last[name], vacancy
	u.say("%s terminates %s first, and requires %s", c.name, name, pods)
}

// holder is the launch that a vacancy is kept for.
func (v *vacancies) holder(vacancy string) string {
	if launch := v.holds[vacancy]; launch != "" {
		return launch
	}
	return vacancy
}

// refill lets a launch take over the vacancy of the machine that its pods ran on, and returns that. One that is there is never lost.
func (u *universe) refill(c *cluster, name string) string {
	vacancy := c.wanted[name]
	if _, held := c.kept[vacancy]; !held {
		return ""
	}
	h := c.process.holder
	if c.holds[vacancy] == name {
		if !h.Spend(name, c.demand[name], u.now) {
			u.fail("%s can't launch %s again into the vacancy of %s", c.name, name, vacancy)
		}
		return vacancy
	}
	for _, holder := range []string{c.holder(vacancy), vacancy} {
		if !h.IsVacant(holder) || !h.Ready(u.now) {
			continue
		}
		if !h.SpendVacancy(name, holder, c.demand[name], u.now) {
			u.fail("%s can't launch %s into the vacancy of %s", c.name, name, vacancy)
		}
		c.holds[vacancy] = name
		return vacancy
	}
	return ""
}

// restore lets a process that begins take over what an earlier one has kept.
func (c *cluster) restore() {
	h, last := c.process.holder, c.machines[len(c.machines)-1]
	for vacancy, charges := range c.kept {
		filled := false
		for name := range last {
			if c.replaces[name] == vacancy {
				h.Release(vacancy)
				h.Keep(name)
				c.holds[vacancy], filled = name, true
			}
		}
		if _, counts := h.Keep(vacancy); !filled && !counts {
			h.Vacate(vacancy, charges)
		}
	}
}

// end lets a process keep a vacancy no longer: it is filled, or no longer needed.
func (u *universe) end(c *cluster) {
	if len(c.kept) == 0 || c.isCut() {
		return
	}
	vacancy := slices.Sorted(maps.Keys(c.kept))[u.random.IntN(len(c.kept))]
	c.process.holder.Release(c.holder(vacancy))
	c.process.holder.Release(vacancy)
	delete(c.kept, vacancy)
	delete(c.holds, vacancy)
	u.say("%s keeps the vacancy of %s no longer", c.name, vacancy)
}

// run lets five hundred things happen, each after a step of the test's, and then until all are connected and know of each other.
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
	u.heal()
	u.pass(max(2*InFlight, RequestTTL))
}

// demandAll ends all vacancies, and lets each cluster request more than there is for it.
func (u *universe) demandAll() {
	for _, name := range u.names {
		c := u.clusters[name]
		for len(c.kept) > 0 {
			u.end(c)
		}
		for range 6 {
			c.demand[u.id()] = Amounts{"reservation/cr-1": 1}
		}
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
				filled += len(u.clusters[name].replaces)
			}
			u.demandAll()
			u.settle(20)
			u.full()
		}
		if filled < int(*schedules) {
			t.Errorf("%d vacancies were filled in %d schedules", filled, *schedules)
		}
	})
}
