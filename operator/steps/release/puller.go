// SPDX-License-Identifier: Apache-2.0

package release

import (
	"cmp"
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/internal/controllerqueue"
	"github.com/autonode-io/autonode/internal/lru"
	"github.com/autonode-io/autonode/payload"
)

const (
	// awaitedPulls is how many awaited pulls are remembered, and refusals how many tags that a guest refused.
	awaitedPulls = 64
	refusals     = 1024
	// failures is how many failed pulls are remembered. A forgotten one is retried early.
	failures = 1024
	// inFlightOf is how many pulls of one namespace may be in progress or wait for the limiter: each change of mirrors, credentials or
	// annotations is another pull.
	inFlightOf = 64
	// defaultWaitTimeout is how long a reconciliation waits for a pull; most take a fraction of it.
	defaultWaitTimeout = 5 * time.Second
	// minBackoff doubles with each consecutive failure, up to maxBackoff.
	minBackoff = 5 * time.Second
	maxBackoff = 5 * time.Minute
	// verifyInterval is how often an unverified payload is verified again, and unverified how many are remembered.
	verifyInterval = 10 * time.Minute
	unverified     = 1 << 14
)

// request is one image to resolve and read.
type request struct {
	image     string
	component string
	// namespace whose share of the store it uses.
	namespace string
	options   payload.Options
	// inputs identifies credentials, mirrors and requests to resolve again: a failed pull is retried when they
	// change.
	inputs string
}

type pullKey struct{ image, component, inputs string }

// puller pulls payloads in the background, each digest once for a namespace, and caches them for all.
type puller struct {
	clock       clock.PassiveClock
	nodes       client.Reader
	waitTimeout time.Duration

	limiter  *limiter
	byDigest singleflight.Group
	cache    *store
	queue    controllerqueue.Queue[reconcile.Request] // triggers reconciliations

	mu        sync.Mutex
	inFlight  map[pullKey]*inFlightPull
	failed    lru.Cache[pullKey, failure]
	completed lru.Cache[pullKey, *inFlightPull] // for the reconciliations that its end triggered
	verified  lru.Cache[cacheKey, time.Time]    // when the signature of an unverified payload was looked for last
}

// inFlightPull is a pull in progress.
type inFlightPull struct {
	done    chan struct{}
	waiters sets.Set[reconcile.Request] // who has gone away since, and is to be woken
	release *payload.Release
	image   string // of the release, by digest
	err     error
	until   time.Time // when it is too old to be believed of a tag
	// namespace that started it.
	namespace string
}

type failure struct {
	err     error
	backoff wait.Backoff
	until   time.Time
}

func newPuller(clock clock.PassiveClock, nodes client.Reader) *puller {
	return &puller{
		clock: clock, nodes: nodes, waitTimeout: defaultWaitTimeout,
		limiter: newLimiter(), cache: newStore(), inFlight: map[pullKey]*inFlightPull{},
		failed: lru.New[pullKey, failure](failures), completed: lru.New[pullKey, *inFlightPull](awaitedPulls),
		verified: lru.New[cacheKey, time.Time](unverified),
	}
}

// cached returns an image's payload without a request; nil if it isn't cached or not named by digest.
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

// get returns a payload, or an error and when to retry. Neither means that the pull is still in progress: its end
// triggers who.
func (p *puller) get(ctx context.Context, who reconcile.Request, r request,
) (release *payload.Release, retryAfter time.Duration, err error) {
	if release := p.cached(r.image, r.component); release != nil {
		return release, 0, nil
	}
	key := pullKey{r.image, r.component, r.inputs}

	p.mu.Lock()
	if release := p.awaited(key, who); release != nil {
		p.mu.Unlock()
		return release, 0, nil
	}
	f, ok := p.inFlight[key]
	if !ok {
		if !p.room(r.namespace, who) {
			p.mu.Unlock()
			return nil, 0, nil
		}
		if known, ok := p.failed.Get(key); ok {
			if remaining := known.until.Sub(p.clock.Now()); remaining > 0 {
				p.mu.Unlock()
				return nil, remaining, known.err
			}
		}
		f = &inFlightPull{done: make(chan struct{}), waiters: sets.New[reconcile.Request](), namespace: r.namespace}
		p.inFlight[key] = f
		// The pull serves others too, so it outlives this reconciliation. payload's own timeout ends it.
		go p.run(context.WithoutCancel(ctx), key, f, r)
	}
	p.mu.Unlock()

	timer := time.NewTimer(p.waitTimeout)
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

// room reports whether a namespace may start another pull. If not, the end of one of its pulls triggers who.
func (p *puller) room(namespace string, who reconcile.Request) bool {
	count := 0
	var last *inFlightPull
	for _, f := range p.inFlight {
		if f.namespace == namespace {
			count, last = count+1, f
		}
	}
	if count < inFlightOf {
		return true
	}
	last.waiters.Insert(who)
	return false
}

// awaited returns the payload that who has waited for, once. Otherwise a tag whose lookup is slow would be looked up
// forever.
func (p *puller) awaited(key pullKey, who reconcile.Request) *payload.Release {
	f, ok := p.completed.Get(key)
	if !ok || !f.waiters.Has(who) || p.clock.Now().After(f.until) {
		return nil
	}
	f.waiters.Delete(who)
	return p.cached(f.image, key.component)
}

func (p *puller) retryAfter(key pullKey) time.Duration {
	if known, ok := p.failed.Get(key); ok {
		return max(known.until.Sub(p.clock.Now()), time.Second)
	}
	return minBackoff
}

func (p *puller) run(ctx context.Context, key pullKey, f *inFlightPull, r request) {
	done := p.limiter.acquire(strings.Join(payload.Registries(r.image, r.options), ","), r.namespace)
	began := p.clock.Now()
	release, err := p.pull(ctx, r)
	err = withoutCause(err)
	done(payload.ReasonFor(err) == payload.ReasonRegistryUnreachable)
	took := p.clock.Since(began)
	if err == nil {
		// A payload without the component is a failure too, so that its tag isn't looked up with each reconciliation.
		_, err = componentOf(release, r.component)
	}
	pullDuration.WithLabelValues(resultOf(err)).Observe(took.Seconds())

	p.mu.Lock()
	defer p.mu.Unlock()
	f.release, f.err = release, err
	if err != nil {
		backoff := wait.Backoff{Duration: minBackoff, Factor: 2, Cap: maxBackoff, Steps: math.MaxInt}
		if known, ok := p.failed.Get(key); ok {
			backoff = known.backoff
		}
		until := p.clock.Now().Add(backoff.Step())
		p.failed.Add(key, failure{err: err, backoff: backoff, until: until})
	} else {
		p.failed.Remove(key)
		if f.until = p.clock.Now().Add(maxBackoff); f.waiters.Len() > 0 {
			// Don't keep the release, which may be large.
			p.completed.Add(key, &inFlightPull{waiters: f.waiters.Clone(), image: release.Image, until: f.until})
		}
	}
	delete(p.inFlight, key)
	close(f.done)
	for who := range f.waiters {
		p.queue.Add(who)
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
		if err := p.checkPlatforms(ctx, release, r); err != nil {
			return nil, err
		}
		key := cacheKey{digest, r.component}
		if release.Unverified != "" {
			p.verified.Add(key, p.clock.Now())
		}
		return release, p.cache.add(key, r.namespace, release)
	}
	// Not across namespaces: another tenant's mirrors could keep the payload from this one.
	byNamespace := r.namespace + "/" + digest + "/" + r.component
	_, err, shared := p.byDigest.Do(byNamespace, pull)
	if err != nil && shared {
		// The other's credentials or mirrors may have caused the failure.
		_, err, _ = p.byDigest.Do(byNamespace, pull)
	}
	if err != nil {
		return nil, err
	}
	if release := p.cached(image, r.component); release != nil {
		return release, nil
	}
	return payload.ReadDigest(ctx, image, r.options) // pushed out of the cache in between
}

// dueAgain reports whether to verify an unverified payload again. After true it returns false for verifyInterval.
func (p *puller) dueAgain(release *payload.Release, component string) bool {
	key := cacheKey{release.Digest, component}
	p.mu.Lock()
	defer p.mu.Unlock()
	if last, ok := p.verified.Get(key); ok && p.clock.Since(last) < verifyInterval {
		return false
	}
	p.verified.Add(key, p.clock.Now())
	return true
}

// verifyAgain looks for the signature of a cached payload in the background. If the result differs, it triggers who.
func (p *puller) verifyAgain(ctx context.Context, who reconcile.Request, r request) {
	ctx = context.WithoutCancel(ctx) // payload's own timeout ends it
	go func() {
		done := p.limiter.acquire(strings.Join(payload.Registries(r.image, r.options), ","), r.namespace)
		err := payload.Verify(ctx, r.image, r.options)
		reason := payload.ReasonFor(err)
		if err != nil {
			reason = cmp.Or(reason, payload.ReasonRegistryUnreachable)
		}
		done(reason == payload.ReasonRegistryUnreachable)
		release := p.cached(r.image, r.component)
		if release == nil || release.Unverified == reason {
			return
		}
		release.Unverified = reason
		if p.cache.add(cacheKey{release.Digest, r.component}, r.namespace, release) != nil {
			return
		}
		p.queue.Add(who)
	}()
}

// withoutCause drops a registry's response from a remembered error: it may be megabytes.
func withoutCause(err error) error {
	var e *payload.Error
	if !errors.As(err, &e) {
		return err
	}
	short := *e
	short.Err = nil
	return &short
}
