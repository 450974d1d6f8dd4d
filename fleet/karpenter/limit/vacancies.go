// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"time"

	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/fleet/division"
)

// Keep implements Limiter: it stays spent, so that the operator grants it to no other cluster.
func (p *Provider) Keep(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lease != nil && !p.free() {
		p.holder.Keep(name)
	}
}

// FitsWithout implements Limiter.
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

// Release implements Limiter.
func (p *Provider) Release(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	vacant, charges := p.holder.IsVacant(name), p.holder.Charges(name)
	p.holder.Release(name)
	if !vacant {
		return
	}
	p.forget(name)
	p.changed(charges)
}

// vacancyFor returns the vacancy that a launch should take over: one that took the same, else one without which it wouldn't fit. p.mu must
// be held.
func (p *Provider) vacancyFor(name string, charges division.Amounts, vacancies []string, now time.Time) string {
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
