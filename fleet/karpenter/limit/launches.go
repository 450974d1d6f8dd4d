// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/fleet/division"
	"github.com/autonode-io/autonode/internal/message"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
)

var (
	// ErrUnread is returned until the lease and the Machines have been read from the API server.
	ErrUnread = errors.New("the cluster's CapacityLease isn't read yet")
	// ErrMissing is returned while there is no lease, and there was one before this process.
	ErrMissing = errors.New("the cluster's CapacityLease is missing; waiting for the operator to create it again")
	// ErrUngranted is returned while the operator hasn't granted anything yet.
	ErrUngranted = errors.New("the cluster's CapacityLease grants nothing yet; waiting for the operator")
)

// SucceedingError is returned while requests of an earlier process may still create Machines.
type SucceedingError struct{ Until time.Time }

// Error returns until when.
func (e *SucceedingError) Error() string {
	return fmt.Sprintf("waiting until %s: the Karpenter before this one may still have Machines created, "+
		"which the cluster's CapacityLease has to cover",
		e.Until.UTC().Format(time.TimeOnly))
}

// openTimeout is how long Open waits for the first answer of the API server.
const openTimeout = 5 * time.Second

// launch is one NodeClaim's Machine, or one that may still come.
type launch struct {
	// machine that exists, and what was tried lately: should the machine go, another attempt may still have its effect.
	machine capacity.Machine
	tried   []capacity.Machine
	// last is when an attempt began or ended last.
	last   time.Time
	exists bool
	// cached: the cache has reported the Machine, and will report when it is gone. Otherwise the API server was asked, at.
	cached bool
	at     time.Time
	// creating is the number of attempts under way. gone: the Machine was deleted meanwhile.
	creating int
	gone     bool
	// vacancy is the launch whose Machine has gone, of which this one has taken over what was kept.
	vacancy string
}

// Open returns nil once machines may be launched: ErrUnread, ErrMissing, ErrUngranted or a *SucceedingError before. Retry it.
func (p *Provider) Open(ctx context.Context) error {
	select {
	case <-p.known:
	default:
		timer := time.NewTimer(openTimeout)
		defer timer.Stop()
		select {
		case <-p.known:
		case <-timer.C:
			return ErrUnread
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch now := p.Clock.Now(); {
	case p.missing:
		return ErrMissing
	case p.free() || p.holder.Ready(now):
		return nil
	case !p.begun && now.Before(p.from):
		return &SucceedingError{p.from}
	case !p.begun:
		return ErrUnread
	}
	return ErrUngranted
}

// free reports whether nothing limits launches. A new lease has no pools before the first grant, which may follow one that was
// deleted. p.mu must be held.
func (p *Provider) free() bool {
	if p.lease == nil {
		return !p.missing
	}
	return p.lease.Account == "" || p.lease.Sequence > 0 && len(p.lease.Rules) == 0
}

// fits returns the vacancy to take over, if any. p.mu must be held.
func (p *Provider) fits(name string, m capacity.Machine, vacancies []string) (fits bool, vacancy string) {
	if p.free() {
		return true, ""
	}
	if !p.unexpired(m) {
		return false, ""
	}
	charges, now := p.charges(m), p.Clock.Now()
	if vacancy := p.vacancyFor(name, charges, vacancies, now); vacancy != "" {
		return true, vacancy
	}
	return p.holder.Fits(name, charges, now), ""
}

// unexpired reports whether a machine takes from no pool that has ended. p.mu must be held.
func (p *Provider) unexpired(m capacity.Machine) bool {
	now := p.Clock.Now()
	for name := range p.charges(m) {
		if pool, ok := p.pools[name]; ok && pool.Expired(now) {
			return false
		}
	}
	return true
}

func (p *Provider) charges(m capacity.Machine) division.Amounts {
	return division.Charges(p.rules(), m)
}

// Reserve implements Limiter: it takes from the lease what a NodeClaim's machine needs.
func (p *Provider) Reserve(name string, m capacity.Machine, vacancies ...string) (done func(), taken string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fits, vacancy := p.fits(name, m, vacancies)
	if !fits {
		return nil, ""
	}
	charges, now := p.charges(m), p.Clock.Now()
	switch {
	case p.free():
		p.holder.Tried(name, charges, now)
	case vacancy != "":
		before := p.holder.Charges(vacancy)
		if !p.holder.SpendVacancy(name, vacancy, charges, now) {
			return nil, ""
		}
		p.forget(vacancy)
		p.changed(before)
	case !p.holder.Spend(name, charges, now):
		return nil, ""
	}
	l := p.launch(name)
	if vacancy != "" {
		l.vacancy = vacancy
	}
	l.creating++
	l.last = now
	if !slices.Contains(l.tried, m) {
		l.tried = append(l.tried, m)
	}
	p.recommit()
	p.changed(charges)
	return func() { p.done(name) }, l.vacancy
}

// Request implements Limiter. Requests end RequestTTL after the last call.
func (p *Provider) Request(name string, m capacity.Machine, vacancies ...string) (grant capacityprovider.Grant, lacking string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if fits, _ := p.fits(name, m, vacancies); fits {
		return capacityprovider.Granted, ""
	}
	charges, now := p.charges(m), p.Clock.Now()
	if p.free() || !p.unexpired(m) || !p.holder.MaySpend(charges, now) {
		return capacityprovider.GrantImpossible, ""
	}
	var names []string
	for _, pool := range p.poolsOf(charges) {
		amount := charges[pool.name]
		if p.leftOf(pool, now) < amount {
			return capacityprovider.GrantImpossible, ""
		}
		if !p.holder.Fits("", division.Amounts{pool.name: amount}, now) {
			names = append(names, pool.name)
		}
	}
	since := p.holder.Request(name, charges, now)
	p.Trigger()
	if now.Sub(since) < capacityprovider.GrantWait {
		return capacityprovider.GrantAwaited, list(names)
	}
	for _, pool := range p.poolsOf(charges) {
		if p.holder.Free(pool.name) < charges[pool.name] {
			pool.backedOffUntil = now.Add(capacityprovider.BackOffTTL)
			p.recomputePools(pool)
		}
	}
	p.setExpiry(now)
	return capacityprovider.GrantRefused, list(names)
}

// Await implements Limiter.
func (p *Provider) Await(ctx context.Context, timeout time.Duration) {
	p.mu.Lock()
	raised := p.raised
	p.mu.Unlock()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-raised:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Exhausted implements Limiter.
func (p *Provider) Exhausted() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var names []string
	for name, pool := range p.pools {
		if pool.Left <= 0 {
			names = append(names, name)
		}
	}
	return list(names)
}

// list joins a few names.
func list(names []string) string {
	slices.Sort(names)
	return message.List(names, 5, ", ")
}

// done records that an attempt to create the Machine of a successful Reserve has ended.
func (p *Provider) done(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, ok := p.launches[name]
	if !ok || l.creating == 0 {
		return
	}
	l.creating--
	now := p.Clock.Now()
	l.last = now
	p.holder.Tried(name, nil, now)
	if l.gone && l.creating == 0 {
		l.gone = false
		p.holder.Gone(name, now)
		p.tidy(name)
	}
}

// Abandon implements Limiter: what the launch has taken returns once the API server reports that it has no Machine.
func (p *Provider) Abandon(name string, requested bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.Clock.Now()
	if requested {
		p.holder.Leave(name, now)
	} else if l, ok := p.launches[name]; !ok || l.creating == 0 {
		p.holder.Abandon(name, now)
	}
	p.Trigger()
}

// ObserveMachine records a Machine that the cache has.
func (p *Provider) ObserveMachine(name string, m capacity.Machine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, known := p.launches[name]
	if known && l.exists && l.cached && l.machine == m && !l.gone {
		return
	}
	p.exists(name, m).cached = true
}

// ForgetMachine records that the cache has a Machine no more.
func (p *Provider) ForgetMachine(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.removed != nil {
		p.removed[name] = true
	}
	p.gone(name)
}

// exists records a Machine. p.mu must be held.
func (p *Provider) exists(name string, m capacity.Machine) *launch {
	l := p.launch(name)
	before := p.holder.Charges(name)
	l.machine, l.exists, l.gone = m, true, false
	if !l.trying(p.Clock.Now()) {
		l.tried = nil
	}
	p.recommit()
	charges := p.taken(l)
	p.holder.Exists(name, charges)
	if !before.Equal(charges) {
		p.changed(before)
		p.changed(charges)
	}
	return l
}

// trying reports whether the request of an attempt may still have its effect.
func (l *launch) trying(now time.Time) bool {
	return l.creating > 0 || now.Before(l.last.Add(division.InFlight))
}

// taken is the most that a launch takes. p.mu must be held.
func (p *Provider) taken(l *launch) division.Amounts {
	charges := division.Amounts{}
	if l.exists {
		charges.Raise(p.charges(l.machine))
	}
	for _, m := range l.tried {
		charges.Raise(p.charges(m))
	}
	return charges
}

// gone records that a Machine is gone. p.mu must be held.
func (p *Provider) gone(name string) {
	l, ok := p.launches[name]
	if !ok || !l.exists {
		return
	}
	l.exists, l.cached = false, false
	if !slices.Contains(l.tried, l.machine) {
		l.tried = append(l.tried, l.machine)
	}
	if l.creating > 0 {
		l.gone = true
		return
	}
	p.holder.Gone(name, p.Clock.Now())
	p.tidy(name)
}

// tidy forgets a launch that the holder has dropped. p.mu must be held.
func (p *Provider) tidy(name string) {
	if p.holder.Tracks(name) {
		if p.holder.IsVacant(name) {
			// The launch that is to take it over has waited for this.
			p.changed(p.holder.Charges(name))
			p.granted.Notify()
		}
		return
	}
	if l, ok := p.launches[name]; ok {
		p.forget(name)
		for _, m := range append(l.tried, l.machine) {
			p.changed(p.charges(m))
		}
	}
}

// forget forgets a launch. p.mu must be held.
func (p *Provider) forget(name string) {
	delete(p.launches, name)
	p.recommit()
}

// changed recomputes the pools of amounts that have been taken or returned. p.mu must be held.
func (p *Provider) changed(amounts division.Amounts) {
	if len(amounts) > 0 {
		p.recomputePools(p.poolsOf(amounts)...)
		p.Trigger()
	}
}

func (p *Provider) launch(name string) *launch {
	l, ok := p.launches[name]
	if !ok {
		l = &launch{}
		p.launches[name] = l
	}
	return l
}

// Report returns what to write into the status of the lease; false while there is nothing to report. The write has to fail if the lease
// has changed since Lease returned it, which has to be called before.
func (p *Provider) Report() (report division.Report, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lease == nil {
		return division.Report{}, false
	}
	return p.holder.Report(p.Clock.Now())
}

// Lease returns the newest lease that this process keeps to; nil for none. It is shared: don't modify it.
func (p *Provider) Lease() *Lease {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lease
}
