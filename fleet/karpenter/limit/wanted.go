// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/fleet/division"
)

// Short reports whether the lease has a pool of which too little is left for some machine, although more might be granted in time.
func (p *Provider) Short() bool {
	return p.hasPool(func(name string, pool *pool) bool { return pool.Left < p.lease.Attainable[name] })
}

// hasPool reports whether the lease is in use and one of its pools matches. matches is called with p.mu held.
func (p *Provider) hasPool(matches func(name string, pool *pool) bool) bool {
	if !p.Limits() {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free() || !p.holder.Ready(p.Clock.Now()) {
		return false
	}
	for name, pool := range p.pools {
		if matches(name, pool) {
			return true
		}
	}
	return false
}

// InTime returns how many machines of an offering of which the lease leaves too little might be launched once machines of this or of other
// clusters have gone. Only those in a reservation are counted.
func (p *Provider) InTime(m capacity.Machine) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free() || !p.holder.Ready(p.Clock.Now()) || !p.unexpired(m) {
		return 0
	}
	count := int64(capacity.Unlimited)
	for name, amount := range p.charges(m) {
		attainable := p.lease.Attainable[name]
		if pool, ok := p.pools[name]; ok && pool.Counted {
			attainable -= p.holder.Used(name)
		}
		if amount > attainable {
			return 0
		}
		count = min(count, attainable/amount)
	}
	return int(count)
}

// Want requests a number of each of these machines, for pods for which Karpenter core makes no NodeClaim because no offering has room.
// Call it again while they wait: a request ends capacity.LeftTTL after the last call, or when a launch takes it over.
func (p *Provider) Want(machines map[capacity.Machine]int64) {
	if len(machines) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free() {
		return
	}
	type wanted struct {
		charges division.Amounts
		count   int64
	}
	var all []*wanted
	for m, count := range machines {
		charges, known := p.charges(m), false
		for _, w := range all {
			if w.charges.Equal(charges) {
				w.count, known = w.count+count, true
			}
		}
		if !known {
			all = append(all, &wanted{charges, count})
		}
	}
	for _, w := range all {
		p.holder.Want(w.charges, w.count, p.Clock.Now())
	}
	p.Trigger()
}
