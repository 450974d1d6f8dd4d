// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/autonode-io/autonode/fleet/conversion"
	"github.com/autonode-io/autonode/fleet/division"
)

// How often Step is due if nothing happens: with a lease, and without one.
const (
	leasedInterval   = 10 * time.Second
	unleasedInterval = 5 * time.Minute
)

// Step follows the lease, and reads from the API server what the protocol needs. Call it first when this process is
// elected, then when Triggered receives, and at the latest after the time that it returns. After an error, retry soon.
func (p *Provider) Step(ctx context.Context) (next time.Duration, err error) {
	p.mu.Lock()
	now := p.Clock.Now()
	if p.elected.IsZero() {
		p.elected = now
	}
	p.mu.Unlock()

	cached, err := p.Source.Cached(ctx)
	switch {
	case p.due(cached, err):
		if err := p.read(ctx); err != nil {
			return leasedInterval, err
		}
	case err != nil:
		return leasedInterval, fmt.Errorf("reading the lease: %w", err)
	case cached != nil:
		p.observe(cached)
	}
	if err := p.resolve(ctx); err != nil {
		return leasedInterval, err
	}
	return p.next(), nil
}

// due reports whether the lease and the Machines have to be read from the API server: at first, when an earlier process's
// requests have had their effect, and when the cache has another lease than was read.
func (p *Provider) due(cached *Lease, err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !p.isKnown, p.missing:
		return true
	case p.lease != nil && !p.begun && !p.Clock.Now().Before(p.from):
		return true
	case err != nil:
		return false
	case cached == nil || p.lease == nil:
		return (cached == nil) != (p.lease == nil)
	}
	return cached.ID != p.lease.ID || cached.Account != p.lease.Account && cached.Sequence >= p.lease.Sequence
}

// next returns when Step is due if nothing happens before.
func (p *Provider) next() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.missing:
		return leasedInterval
	case p.lease == nil:
		return unleasedInterval
	}
	if until := p.from.Sub(p.Clock.Now()); !p.begun && until > 0 && until < leasedInterval {
		return until
	}
	return leasedInterval
}

// read reads the lease and the Machines from the API server.
func (p *Provider) read(ctx context.Context) error {
	asked := p.Clock.Now()
	lease, err := p.Source.Live(ctx)
	if err != nil && !p.isUnserved(err) {
		return fmt.Errorf("reading the lease from the API server: %w", err)
	}
	if err != nil || lease == nil {
		return p.absent(ctx)
	}
	if err := p.remember(ctx, lease.Account != ""); err != nil {
		return err
	}
	p.mu.Lock()
	p.removed = map[string]bool{}
	p.mu.Unlock()
	machines, err := p.Source.Machines(ctx)
	first := false
	if err == nil && lease.Status.AcknowledgedSequence == 0 && len(machines) == 0 {
		first, err = p.Source.First(ctx)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	removed := p.removed
	p.removed = nil
	if err != nil {
		return fmt.Errorf("reading the Machines from the API server: %w", err)
	}
	if p.lease == nil || p.lease.Account != lease.Account && lease.Sequence >= p.lease.Sequence {
		p.join(first && len(p.launches) == 0)
	}
	for name, m := range machines {
		if l := p.launches[name]; !removed[name] && (l == nil || !l.exists) {
			l = p.exists(name, m)
			l.cached, l.at = false, asked
		}
	}
	p.adopt(lease)
	if !p.begun && !asked.Before(p.from) {
		p.begun = true
		p.holder.Begin(asked)
	}
	p.setKnown()
	return nil
}

// join begins with a lease of another account, or the first one. Earlier grants have no meaning in it. p.mu must be held.
func (p *Provider) join(first bool) {
	p.holder = division.NewHolder(never)
	p.lease, p.begun, p.missing = nil, false, false
	if p.from = p.elected.Add(division.InFlight); first {
		p.from = p.elected
	}
	p.recharge()
}

// recharge charges all launches by the rules of the lease. p.mu must be held.
func (p *Provider) recharge() {
	for name, l := range p.launches {
		charges := p.taken(l)
		switch {
		case p.holder.Tracks(name):
			p.holder.Recharge(name, charges)
		case l.exists:
			p.holder.Exists(name, charges)
		default:
			p.holder.Tried(name, charges, p.Clock.Now())
			if l.creating == 0 {
				// Its Machine may be gone, and no event reports that again. Another attempt takes this back.
				p.holder.Abandon(name, p.Clock.Now())
			}
		}
	}
	p.holder.WithdrawAll()
}

// adopt takes over the lease as the API server has it. p.mu must be held.
func (p *Provider) adopt(lease *Lease) {
	p.holder.Adopt(lease.Lease)
	p.apply(lease)
}

// observe takes over the lease as the cache has it.
func (p *Provider) observe(lease *Lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lease != nil && p.holder.Observe(lease.Lease) {
		p.apply(lease)
	}
}

// apply applies what the lease declares beside amounts. p.mu must be held.
func (p *Provider) apply(lease *Lease) {
	before := p.lease
	if before != nil && lease.Sequence < before.Sequence {
		// An older one, or a new object without a grant. The holder keeps what it was granted before, too.
		older := *before
		older.ID, older.ResourceVersion, older.Status = lease.ID, lease.ResourceVersion, lease.Status
		p.lease = &older
		return
	}
	p.lease = lease
	deadlines := p.reclaims
	if deadlines == nil { // a process begins with those of its predecessor
		deadlines = conversion.Reclaims(lease.Status.Reclaim)
	}
	p.reclaims = division.Follow(deadlines, lease.Reclaims, p.Clock.Now(), lease.ReclaimGracePeriod)
	for name, pool := range p.pools {
		if before != nil && lease.Limit[name] > before.Limit[name] {
			pool.backedOffUntil = time.Time{}
		}
	}
	now := p.Clock.Now()
	switch {
	case before == nil || !reflect.DeepEqual(before.Rules, lease.Rules) || !reflect.DeepEqual(before.Expires, lease.Expires) ||
		before.limits() != lease.limits():
		p.recharge()
		p.replacePools()
	case !reflect.DeepEqual(before.Commitments, lease.Commitments) || !reflect.DeepEqual(before.Unavailable, lease.Unavailable):
		p.commit()
		p.recomputeAll(now)
	case before.Sequence != lease.Sequence || !before.Available.Equal(lease.Available) ||
		!reflect.DeepEqual(before.Reclaims, lease.Reclaims):
		p.recomputePools(slices.Collect(maps.Values(p.pools))...)
	default:
		return
	}
	close(p.raised)
	p.raised = make(chan struct{})
	if p.holder.HasLeft(now) {
		p.granted.Notify()
	}
	p.Trigger()
}

// absent records that the API server has no lease, or serves none. One that was deleted still limits this process and those that succeed
// it: the operator makes it again, and writes one without pools to lift the limits.
func (p *Provider) absent(ctx context.Context) error {
	p.mu.Lock()
	leased := p.lease != nil
	p.mu.Unlock()
	governed := false
	if !leased && p.Memory != nil {
		var err error
		if governed, err = p.Memory.Governed(ctx); err != nil {
			return fmt.Errorf("reading whether the cluster had a lease: %w", err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.missing = governed
	p.setKnown()
	return nil
}

// remember records for later processes whether the cluster has a lease of an account, before anything is launched by it.
func (p *Provider) remember(ctx context.Context, governed bool) error {
	p.mu.Lock()
	done := p.Memory == nil || p.remembered != nil && *p.remembered == governed
	p.mu.Unlock()
	if done {
		return nil
	}
	if err := p.Memory.Remember(ctx, governed); err != nil {
		return fmt.Errorf("recording that the cluster has a lease: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remembered = &governed
	return nil
}

// isUnserved reports whether an error means that there are no leases.
func (p *Provider) isUnserved(err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lease == nil && errors.Is(err, ErrUnserved)
}

func (p *Provider) setKnown() {
	if !p.isKnown {
		p.isKnown = true
		close(p.known)
	}
}

// resolve finds out what came of launches that ended without a Machine, and whether Machines still exist of which the cache
// has never reported.
func (p *Provider) resolve(ctx context.Context) error {
	asked := p.Clock.Now()
	p.mu.Lock()
	for _, name := range p.holder.Idle(asked.Add(-idleTTL)) {
		if l := p.launches[name]; l == nil || l.creating == 0 {
			p.holder.Abandon(name, asked)
		}
	}
	unclear := p.holder.Unclear(asked)
	if p.lease == nil {
		// Nothing depends on it, and a Machine that comes after all is counted then.
		for _, name := range unclear {
			p.holder.Absent(name, asked)
			p.tidy(name)
		}
		unclear = nil
	}
	for name, l := range p.launches {
		if l.exists && len(l.tried) > 0 && !l.trying(asked) {
			p.exists(name, l.machine)
		}
		if l.exists && !l.cached && asked.Sub(l.at) >= division.InFlight {
			l.at = asked
			unclear = append(unclear, name)
		}
	}
	p.mu.Unlock()
	for _, name := range unclear {
		m, exists, err := p.Source.Machine(ctx, name)
		if err != nil {
			return fmt.Errorf("asking the API server for Machine %s: %w", name, err)
		}
		p.mu.Lock()
		switch l := p.launches[name]; {
		case l == nil:
		case exists && !l.exists:
			l = p.exists(name, m)
			l.cached, l.at = false, asked
		case !exists && l.exists && !l.cached:
			p.gone(name)
		case !exists:
			p.holder.Absent(name, asked)
			p.tidy(name)
		}
		p.mu.Unlock()
	}
	return nil
}
