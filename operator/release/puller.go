// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/payload"
)

const (
	// awaitedPulls is how many pulls are remembered whose end somebody waited for, and refusals how many tags that the guest refused.
	awaitedPulls = 64
	refusals     = 1024
	// failures is how many failed pulls are remembered; to forget one means to try it early.
	failures = 1024
	// defaultPatience is how long a reconciliation waits for a pull; most take a fraction of it.
	defaultPatience = 5 * time.Second
	// minBackoff doubles with each failure in a row, until maxBackoff.
	minBackoff = 5 * time.Second
	maxBackoff = 5 * time.Minute
)

// request is one image to be resolved and read.
type request struct {
	image     string
	component string
	// namespace is whose share of what is kept it takes.
	namespace string
	options   payload.Options
	// inputs distinguishes credentials, mirrors and requests to resolve again: when they change, what failed before is tried anew.
	inputs string
}

type flightKey struct{ image, component, inputs string }

// puller pulls payloads in the background, each digest once, and remembers what it got.
type puller struct {
	clock    clock.PassiveClock
	patience time.Duration

	slots    *slots
	byDigest singleflight.Group
	cache    *store

	mu      sync.Mutex
	flights map[flightKey]*flight
	failed  *lru.Cache // of failure by flightKey
	landed  *lru.Cache // of *flight by flightKey, for those who were woken by its end
	queue   workqueue.TypedRateLimitingInterface[reconcile.Request]
}

// flight is a pull under way.
type flight struct {
	done    chan struct{}
	waiters sets.Set[reconcile.Request] // who has gone away since, and is to be woken
	release *payload.Release
	image   string // of the release, by digest
	err     error
	until   time.Time // when it is too old to be believed of a tag
}

type failure struct {
	err   error
	times int
	until time.Time
}

func newPuller(clock clock.PassiveClock) *puller {
	return &puller{
		clock: clock, patience: defaultPatience,
		slots: newSlots(), cache: newStore(), failed: lru.New(failures), landed: lru.New(awaitedPulls), flights: map[flightKey]*flight{},
	}
}

// start gives the puller the queue to wake reconciliations by.
func (p *puller) start(queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = queue
}

// cached returns what image holds without a request, nil if it isn't known or not by digest.
func (p *puller) cached(image, component string) *payload.Release {
	_, digest, found := strings.Cut(image, "@")
	if !found {
		return nil
	}
	hit := p.cache.get(cacheKey{digest, component})
	if hit == nil {
		return nil
	}
	release := *hit
	release.Image = image // another repository may hold the same digest
	return &release
}

type cacheKey struct{ digest, component string }

// get returns a payload, or an error and when to try again. Neither means that the pull takes long: who is woken when it ends.
func (p *puller) get(ctx context.Context, who reconcile.Request, r request) (release *payload.Release, retryAfter time.Duration, err error) {
	if release := p.cached(r.image, r.component); release != nil {
		return release, 0, nil
	}
	key := flightKey{r.image, r.component, r.inputs}

	p.mu.Lock()
	if release := p.awaited(key, who); release != nil {
		p.mu.Unlock()
		return release, 0, nil
	}
	f, ok := p.flights[key]
	if !ok {
		if known, ok := p.failed.Get(key); ok {
			if left := known.(failure).until.Sub(p.clock.Now()); left > 0 {
				p.mu.Unlock()
				return nil, left, known.(failure).err
			}
		}
		f = &flight{done: make(chan struct{}), waiters: sets.New[reconcile.Request]()}
		p.flights[key] = f
		// What is pulled serves others too, so it outlives this reconciliation; it ends by payload's own time limit.
		go p.fly(context.WithoutCancel(ctx), key, f, r)
	}
	p.mu.Unlock()

	timer := time.NewTimer(p.patience)
	defer timer.Stop()
	select {
	case <-f.done:
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	case <-timer.C:
		p.mu.Lock()
		defer p.mu.Unlock()
		select {
		case <-f.done:
		default:
			f.waiters.Insert(who)
			return nil, 0, nil
		}
	}
	if f.err != nil {
		return nil, p.retryAfter(key), f.err
	}
	return f.release, 0, nil
}

// awaited returns what who has waited for, once: a tag that is looked up slowly would be looked up again and again otherwise.
func (p *puller) awaited(key flightKey, who reconcile.Request) *payload.Release {
	hit, ok := p.landed.Get(key)
	if !ok {
		return nil
	}
	f := hit.(*flight)
	if !f.waiters.Has(who) || p.clock.Now().After(f.until) {
		return nil
	}
	f.waiters.Delete(who)
	return p.cached(f.image, key.component)
}

func (p *puller) retryAfter(key flightKey) time.Duration {
	if known, ok := p.failed.Get(key); ok {
		return max(known.(failure).until.Sub(p.clock.Now()), time.Second)
	}
	return minBackoff
}

func (p *puller) fly(ctx context.Context, key flightKey, f *flight, r request) {
	done := p.slots.acquire(strings.Join(payload.Registries(r.image, r.options), ","))
	began := p.clock.Now()
	release, err := p.pull(ctx, r)
	err = withoutCause(err)
	done(payload.ReasonFor(err) == payload.ReasonRegistryUnreachable)
	took := p.clock.Since(began)
	if err == nil {
		// A payload that lacks what is asked for is a failure too, so that its tag isn't looked up with each reconciliation.
		_, err = componentOf(release, r.component)
	}
	pullDuration.WithLabelValues(resultOf(err)).Observe(took.Seconds())

	p.mu.Lock()
	defer p.mu.Unlock()
	f.release, f.err = release, err
	if err != nil {
		times := 0
		if known, ok := p.failed.Get(key); ok {
			times = known.(failure).times
		}
		backoff := min(minBackoff<<min(times, 10), maxBackoff)
		p.failed.Add(key, failure{err: err, times: times + 1, until: p.clock.Now().Add(backoff)})
	} else {
		p.failed.Remove(key)
		if f.until = p.clock.Now().Add(maxBackoff); f.waiters.Len() > 0 {
			// Not the release itself, which may be large.
			p.landed.Add(key, &flight{waiters: f.waiters.Clone(), image: release.Image, until: f.until})
		}
	}
	delete(p.flights, key)
	close(f.done)
	for who := range f.waiters {
		if p.queue != nil {
			p.queue.Add(who)
		}
	}
}

func (p *puller) pull(ctx context.Context, r request) (*payload.Release, error) {
	image, err := payload.Resolve(ctx, r.image, r.options)
	if err != nil {
		return nil, err
	}
	_, digest, _ := strings.Cut(image, "@")
	pull := func() (any, error) {
		if release := p.cached(image, r.component); release != nil {
			return release, nil
		}
		release, err := payload.ReadDigest(ctx, image, r.options)
		if err != nil {
			return nil, err
		}
		return release, p.cache.add(cacheKey{digest, r.component}, r.namespace, release)
	}
	_, err, shared := p.byDigest.Do(digest+"/"+r.component, pull)
	if err != nil && shared {
		// The other's credentials or mirrors may have been the reason.
		_, err, _ = p.byDigest.Do(digest+"/"+r.component, pull)
	}
	if err != nil {
		return nil, err
	}
	if release := p.cached(image, r.component); release != nil {
		return release, nil
	}
	return payload.ReadDigest(ctx, image, r.options) // pushed out of the cache in between
}

// withoutCause drops what a registry sent from an error that is remembered: it may be megabytes.
func withoutCause(err error) error {
	var e *payload.Error
	if !errors.As(err, &e) {
		return err
	}
	short := *e
	short.Err = nil
	return &short
}
