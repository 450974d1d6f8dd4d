// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"time"

	"github.com/autonode-io/autonode/capacity"
)

// Kept is what was kept of a launch whose Machine was removed before its replacement could be launched.
type Kept struct {
	// Name of the NodeClaim.
	Name string
	// Account that has granted it. In a lease of another one it has no meaning.
	Account string
	Charges capacity.Amounts
}

// Keep keeps what a NodeClaim's Machine takes from the lease when that goes: it stays spent, so that the operator grants it to no other
// cluster, until a launch takes it over, or Release. It returns what to give a later process; false if the lease doesn't count it.
func (p *Provider) Keep(name string) (Kept, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lease == nil || p.free() {
		return Kept{}, false
	}
	charges, ok := p.holder.Keep(name)
	return Kept{Name: name, Account: p.lease.Account, Charges: charges}, ok
}

// FitsWithout reports whether a machine could be launched, maybe after more was granted, if a NodeClaim's Machine went and what that takes was
// kept for it.
func (p *Provider) FitsWithout(name string, m capacity.Machine) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free() {
		return true
	}
	before, now := p.holder.Charges(name), p.Clock.Now()
	for pool, amount := range p.charges(m) {
		if p, ok := p.pools[pool]; ok && (p.Expired(now) || amount > p.Left+before[pool]) {
			return false
		}
	}
	return true
}

// Release keeps nothing of a launch any more.
func (p *Provider) Release(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	vacant, charges := p.holder.IsVacant(name), p.holder.Charges(name)
	p.holder.Release(name)
	delete(p.vacated, name)
	if !vacant {
		return
	}
	p.forget(name)
	p.changed(charges)
}

// Took returns the vacancy that a launch has taken over; empty for none.
func (p *Provider) Took(name string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l, ok := p.launches[name]; ok {
		return l.vacancy
	}
	return ""
}

// vacancyFor returns the vacancy that a launch should take over: one that took the same, else one without which it wouldn't fit. p.mu must
// be held.
func (p *Provider) vacancyFor(name string, charges capacity.Amounts, vacancies []string, now time.Time) string {
	if len(charges) == 0 {
		return ""
	}
	serves := ""
	for _, vacancy := range vacancies {
		switch {
		case !p.holder.FitsVacancy(name, vacancy, charges, now):
		case p.holder.Charges(vacancy).Equal(charges):
			return vacancy
		case serves == "":
			serves = vacancy
		}
	}
	if p.holder.Fits(name, charges, now) {
		return ""
	}
	return serves
}

// restore takes over what earlier processes have kept, of which replacements may have Machines. p.mu must be held.
func (p *Provider) restore(kept []Kept, replacements map[string]string) {
	for _, k := range kept {
		if p.lease == nil || k.Account != p.lease.Account {
			continue
		}
		if replacement, filled := replacements[k.Name]; filled && p.holder.Tracks(replacement) {
			p.holder.Release(k.Name)
			delete(p.vacated, k.Name)
			p.holder.Keep(replacement)
			continue
		}
		if _, counts := p.holder.Keep(k.Name); counts {
			continue
		}
		charges := capacity.Amounts{}
		for _, rule := range p.rules() {
			if amount := k.Charges[rule.Pool]; amount > 0 {
				charges[rule.Pool] = amount
			}
		}
		p.vacated[k.Name] = charges
		p.holder.Vacate(k.Name, charges)
		p.changed(charges)
	}
}
