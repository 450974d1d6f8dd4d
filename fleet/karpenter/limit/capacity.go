// SPDX-License-Identifier: Apache-2.0

// Package limit keeps this cluster within its CapacityLease: what it may take of the reservations and quotas that it
// shares with other clusters of an account. A Machine is created only after Reserve has taken its part; offerings
// that the lease leaves no room for aren't available, and commitments lower their prices. Without a lease it limits
// nothing. The protocol is that of package division, whose Holder does the accounting.
package limit

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/autonode-io/autonode/capacity"
	"github.com/autonode-io/autonode/fleet/division"
	capacityprovider "github.com/autonode-io/autonode/karpenter/providers/capacity"
	"github.com/autonode-io/autonode/karpenter/providers/change"
)

const (
	// idleTTL is how long a launch without a Machine counts that isn't tried again. It is longer than Karpenter's launch
	// timeout: Karpenter deletes a NodeClaim without a provider ID and doesn't call Delete.
	idleTTL = 10 * time.Minute
	// maxAsks limits the offerings whose changes are followed one by one.
	maxAsks = 100_000
)

// never is when a process may begin that hasn't read the lease and the Machines yet.
var never = time.Unix(1<<60, 0)

// Config of a Provider.
type Config struct {
	Clock clock.PassiveClock
	// Source of the lease; nil where there is none, which limits nothing.
	Source Source
	// Memory outlives processes; nil for none, as in a process that launches nothing.
	Memory Memory
}

// Memory of a cluster's processes distinguishes a CapacityLease that was never there from one that was deleted.
type Memory interface {
	// Governed reports whether the cluster's last CapacityLease was of an account.
	Governed(ctx context.Context) (bool, error)
	// Remember records that for later processes. It writes nothing if it is recorded already.
	Remember(ctx context.Context, governed bool) error
}

// Provider is a Limiter that spends a CapacityLease.
type Provider struct {
	Config

	// changes are the instance types whose offers have changed. All have before rebuilt, a sequence number.
	changes change.Log[string]
	// limiting: a lease limits something. Without one, offers are read without a lock.
	limiting atomic.Bool
	// observers are notified when an offer changes.
	observers change.Notifier
	// granted are notified when more may be allowed than before, and launches were given up because they waited for that.
	granted change.Notifier
	// nextExpiry is when an offer changes without a call.
	nextExpiry change.Expiry
	// triggered has an element when Step has something to do, or Report has changed.
	triggered chan struct{}

	mu      sync.Mutex
	rebuilt uint64
	// known is closed once this process has read whether there is a lease.
	known   chan struct{}
	isKnown bool
	// raised is closed and replaced whenever more may be allowed than before.
	raised chan struct{}

	// elected is when this process was elected; begun: it has read everything that an earlier process may have done, which
	// is possible from then on.
	elected, from time.Time
	begun         bool
	// lease is the last one; nil for none.
	lease *Lease
	// reclaims are those of the lease, with deadlines; nil before the first lease.
	reclaims division.Reclaims
	// missing: there is no lease, and there was one of an account before this process.
	missing bool
	// remembered is what this process has recorded for later ones; nil for nothing yet.
	remembered *bool

	holder   *division.Holder
	launches map[string]*launch
	// removed are the Machines that were deleted while the API server lists them.
	removed map[string]bool

	pools map[string]*pool
	asks  map[capacity.Machine]*ask

	// committed are the commitments of committedOf, a lease, beside the machines of all clusters and since, the number of machines that this
	// one has more than the operator had counted. priced has what a machine of an offering is for commitments.
	committed   *division.Commitments
	committedOf *Lease
	since       map[capacity.Offering]int64
	priced      map[capacity.Offering]capacity.Priced
	// unmatched is the result of Unmatched by unmatchedOf, a lease; nil for none.
	unmatched   []string
	unmatchedOf *Lease
}

// pool of the lease.
type pool struct {
	name string
	division.Pool
	// backedOffUntil is until when nothing more than what is granted is expected.
	backedOffUntil time.Time
	// asks that take from it, in the order of what they take once sorted.
	asks   []poolCharge
	sorted bool
}

type poolCharge struct {
	*ask
	amount int64
}

// ask is an offering that was asked for, and the last answer.
type ask struct {
	machine capacity.Priced
	takes   []division.PoolCharge
	offer   capacity.Offer
}

var _ capacityprovider.Limiter = (*Provider)(nil)

// New returns a provider that launches nothing before Step has found out whether there is a lease.
func New(config Config) *Provider {
	p := &Provider{
		Config: config, triggered: make(chan struct{}, 1), known: make(chan struct{}), raised: make(chan struct{}),
		holder: division.NewHolder(never), launches: map[string]*launch{}, pools: map[string]*pool{}, asks: map[capacity.Machine]*ask{},
		priced: map[capacity.Offering]capacity.Priced{},
	}
	if config.Source == nil {
		p.setKnown()
	}
	return p
}

// Trigger makes Triggered ready to receive.
func (p *Provider) Trigger() {
	select {
	case p.triggered <- struct{}{}:
	default:
	}
}

// Triggered receives after something has changed that Step or Report depends on.
func (p *Provider) Triggered() <-chan struct{} { return p.triggered }

// OnChange implements Limiter.
func (p *Provider) OnChange(f func()) { p.observers.Add(f) }

// OnGrant implements Limiter.
func (p *Provider) OnGrant(f func()) { p.granted.Add(f) }

// Sequence implements Limiter.
func (p *Provider) Sequence() uint64 {
	if p.nextExpiry.Passed(p.Clock) {
		p.mu.Lock()
		p.recomputeAll(p.Clock.Now())
		p.mu.Unlock()
	}
	return p.changes.Sequence()
}

// Since implements Limiter.
func (p *Provider) Since(sequence uint64) (instanceTypes []string, known bool) {
	p.mu.Lock()
	rebuilt := p.rebuilt
	p.mu.Unlock()
	if sequence < rebuilt {
		return nil, false
	}
	return p.changes.Since(sequence)
}

// Limits reports whether a lease limits or prices anything. It takes no lock.
func (p *Provider) Limits() bool { return p.limiting.Load() }

// Offer implements Limiter.
func (p *Provider) Offer(m capacity.Machine, list float64) capacity.Offer {
	if !p.Limits() {
		return capacityprovider.Unlimited{}.Offer(m, list)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	a, known := p.asks[m]
	if !known {
		if len(p.asks) >= maxAsks {
			p.replacePools()
		}
		a = &ask{machine: capacity.Priced{Machine: m}}
		for name, amount := range division.Charges(p.rules(), m) {
			pool := p.pools[name]
			a.takes = append(a.takes, division.PoolCharge{Pool: &pool.Pool, Amount: amount})
			pool.asks, pool.sorted = append(pool.asks, poolCharge{a, amount}), false
		}
		p.asks[m] = a
	}
	if !known || a.machine.Price != list {
		a.machine.Price, p.unmatchedOf = list, nil
		if m.Reservation == "" {
			p.priced[m.Offering] = a.machine
		}
		a.offer = p.offer(a, p.Clock.Now())
	}
	return a.offer
}

// offer computes an answer. p.mu must be held.
func (p *Provider) offer(a *ask, now time.Time) capacity.Offer {
	if p.lease == nil {
		return division.OfferOf(&a.machine, a.takes, nil, nil, now)
	}
	return division.OfferOf(&a.machine, a.takes, p.committed, p.lease.Unavailable, now)
}

// rules of the lease. p.mu must be held.
func (p *Provider) rules() []division.Rule {
	if p.lease == nil || !p.lease.limits() {
		return nil
	}
	return p.lease.Rules
}

// replacePools starts over with the pools of the lease: every offer may have changed. p.mu must be held.
func (p *Provider) replacePools() {
	p.pools, p.asks, p.unmatchedOf = map[string]*pool{}, map[capacity.Machine]*ask{}, nil
	for _, rule := range p.rules() {
		p.pools[rule.Pool] = &pool{name: rule.Pool, Pool: division.Pool{Counted: rule.Reservation != "", Expires: p.lease.Expires[rule.Pool]}}
	}
	for _, pool := range p.pools {
		pool.Left = p.leftOf(pool, p.Clock.Now())
	}
	p.limiting.Store(p.lease != nil && p.lease.limits())
	p.commit()
	p.changes.Add("")
	p.rebuilt = p.changes.Sequence()
	p.setExpiry(p.Clock.Now())
	p.observers.Notify()
}

func (p *Provider) leftOf(pool *pool, now time.Time) int64 {
	if pool.Expired(now) {
		return 0
	}
	if now.Before(pool.backedOffUntil) {
		return p.holder.Free(pool.name)
	}
	return p.holder.Left(pool.name)
}

// recomputePools records the offers that change because something else is left of pools. It costs as much as offers change. p.mu
// must be held.
func (p *Provider) recomputePools(pools ...*pool) {
	now := p.Clock.Now()
	changed := map[string]bool{}
	for _, pool := range pools {
		before := pool.Left
		pool.Left = p.leftOf(pool, now)
		if before == pool.Left {
			continue
		}
		if !pool.sorted {
			slices.SortFunc(pool.asks, func(a, b poolCharge) int { return cmp.Compare(a.amount, b.amount) })
			pool.sorted = true
		}
		affected := pool.asks
		if !pool.Counted {
			// Those that fit into one and not into the other.
			affected = affected[above(affected, min(before, pool.Left)):above(affected, max(before, pool.Left))]
		}
		for _, charge := range affected {
			p.recomputeOffer(charge.ask, now, changed)
		}
	}
	p.record(changed)
}

// above returns the position of the first that takes more than an amount.
func above(asks []poolCharge, amount int64) int {
	at, _ := slices.BinarySearchFunc(asks, amount, func(c poolCharge, amount int64) int {
		if c.amount > amount {
			return 1
		}
		return -1
	})
	return at
}

// recomputeOffer computes an answer again. p.mu must be held.
func (p *Provider) recomputeOffer(a *ask, now time.Time, changed map[string]bool) {
	if o := p.offer(a, now); o != a.offer {
		a.offer = o
		changed[a.machine.InstanceType] = true
	}
}

func (p *Provider) record(changed map[string]bool) {
	for name := range changed {
		p.changes.Add(name)
	}
	if len(changed) > 0 {
		p.observers.Notify()
	}
}

// recomputeAll computes all answers again: commitments or unavailable offerings have changed, or something has expired. p.mu
// must be held.
func (p *Provider) recomputeAll(now time.Time) {
	changed := map[string]bool{}
	for _, pool := range p.pools {
		pool.Left = p.leftOf(pool, now)
	}
	for _, a := range p.asks {
		p.recomputeOffer(a, now, changed)
	}
	p.setExpiry(now)
	p.record(changed)
}

// setExpiry finds when an offer next changes without a call. p.mu must be held.
func (p *Provider) setExpiry(now time.Time) {
	var next time.Time
	at := func(t time.Time) {
		if t.After(now) {
			next = change.Earlier(next, t)
		}
	}
	for _, pool := range p.pools {
		at(pool.Expires)
		at(pool.backedOffUntil)
	}
	if p.lease != nil {
		for _, u := range p.lease.Unavailable {
			at(u.Until)
		}
	}
	p.nextExpiry.Set(next)
}

// poolsOf returns the pools that amounts are of. p.mu must be held.
func (p *Provider) poolsOf(amounts division.Amounts) []*pool {
	pools := make([]*pool, 0, len(amounts))
	for name := range amounts {
		if pool, ok := p.pools[name]; ok {
			pools = append(pools, pool)
		}
	}
	return pools
}
