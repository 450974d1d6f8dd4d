// SPDX-License-Identifier: Apache-2.0

// Package link keeps a connection to each guest: clients, the watches of what controllers read, and a probe every ten
// seconds. It does what Cluster API's clustercache does, in a third of the memory: clustercache keeps all kinds that a
// guest's API server knows, and a cache of informers.
package link

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/guest/store"
	"github.com/autonode-io/autonode/operator/message"
)

const (
	// probeInterval and probeTimeout of a connection.
	probeInterval = 10 * time.Second
	probeTimeout  = 5 * time.Second
	// maxFailures in a row close a connection.
	maxFailures = 5
)

// ErrNotConnected is the error of a guest without a connection.
var ErrNotConnected = errors.New("the guest isn't connected")

// Guest is a connection to a guest.
type Guest struct {
	// Config is what the connection was made with.
	Config *rest.Config
	// Live reads from the API server, and writes.
	Live client.Client
	// Store reads from watches, and writes.
	Store *store.Store

	probe func(context.Context) error
}

// Health is what the probes of a guest found. An attempt to connect counts as a probe.
type Health struct {
	LastProbe, LastSuccess time.Time
	// Failures in a row.
	Failures int
	// Exceeded says why the connection was closed, if the guest exceeded the bounds of what is kept of it. It is nil as
	// soon as there is another connection.
	Exceeded error
}

// Config of New.
type Config struct {
	Management client.Reader
	// Scheme of the guests' clients.
	Scheme *runtime.Scheme
	// Kinds limits the objects of each kind that a guest's Store keeps.
	Kinds func(schema.GroupVersionKind) store.Kind
	// Wanted reports whether to connect to a Cluster's guest.
	Wanted func(context.Context, *clusterv1.Cluster) bool
	// Access returns the client configuration of a Cluster's guest.
	Access func(context.Context, client.ObjectKey) (*rest.Config, error)
	// Changed is called when a guest has been connected or lost, and once when it was last seen UnresponsiveAfter ago.
	Changed           func(context.Context, client.ObjectKey)
	UnresponsiveAfter time.Duration
	// Retry is the back-off after a failed attempt to connect, Timeout that of a call.
	Retry, Timeout time.Duration
	Clock          clock.PassiveClock
	// Bounds limit what is kept of each guest, and Backoff is how long one that exceeds them isn't connected.
	Bounds  store.Bounds
	Backoff time.Duration
	// Noticed is called when what can't be read of a guest has changed; nil for not at all.
	Noticed func(context.Context, client.ObjectKey)
}

// Links keeps the connections. It reconciles Clusters.
type Links struct {
	config Config
	codecs serializer.CodecFactory

	mu     sync.Mutex
	links  map[client.ObjectKey]*link
	closed bool
}

// link is the state of one guest.
type link struct {
	guest  *Guest    // nil without a connection
	failed time.Time // the last attempt to connect, if it failed
	health Health
	told   time.Time // when Changed was last called
	rested time.Time // when the back-off of a guest ends that exceeded its bounds
}

// New returns Links without connections.
func New(config Config) *Links {
	return &Links{config: config, codecs: serializer.NewCodecFactory(config.Scheme), links: map[client.ObjectKey]*link{}}
}

// Of returns the connection to a Cluster's guest, or ErrNotConnected.
func (l *Links) Of(cluster client.ObjectKey) (*Guest, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, ok := l.links[cluster]; ok && known.guest != nil {
		return known.guest, nil
	}
	return nil, ErrNotConnected
}

// Health returns what the probes of a Cluster's guest found.
func (l *Links) Health(cluster client.ObjectKey) Health {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, ok := l.links[cluster]; ok {
		return known.health
	}
	return Health{}
}

// Start closes all connections when ctx ends. It implements manager.Runnable.
func (l *Links) Start(ctx context.Context) error {
	<-ctx.Done()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for cluster := range l.links {
		l.drop(cluster)
	}
	return nil
}

// Reconcile implements reconcile.Reconciler.
func (l *Links) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	key := request.NamespacedName
	cluster := &clusterv1.Cluster{}
	err := l.config.Management.Get(ctx, key, cluster)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("reading Cluster %s: %w", key, err)
	}
	if err != nil || !l.config.Wanted(ctx, cluster) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.drop(key)
		return reconcile.Result{}, nil
	}
	if !ptr.Deref(cluster.Status.Initialization.InfrastructureProvisioned, false) {
		return reconcile.Result{}, nil // a change of the Cluster brings us back
	}
	k := l.known(key)
	var after time.Duration
	var changed bool
	if k.guest == nil {
		after, changed = l.connect(ctx, key, k)
	} else {
		after, changed = l.check(ctx, key, k)
	}
	if l.tells(key, changed) {
		l.config.Changed(ctx, key)
	}
	return reconcile.Result{RequeueAfter: max(after, time.Millisecond)}, nil
}

// known returns a copy of a Cluster's state. Only Reconcile changes it, and never twice at a time for one Cluster.
func (l *Links) known(cluster client.ObjectKey) link {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.links[cluster] == nil {
		l.links[cluster] = &link{}
	}
	return *l.links[cluster]
}

// change changes a Cluster's state, unless it was dropped meanwhile.
func (l *Links) change(cluster client.ObjectKey, change func(*link)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k, ok := l.links[cluster]; ok {
		change(k)
	}
}

// drop forgets a Cluster. l.mu is held.
func (l *Links) drop(cluster client.ObjectKey) {
	if k, ok := l.links[cluster]; ok {
		if k.guest != nil {
			k.guest.Store.Close()
		}
		delete(l.links, cluster)
	}
}

// connect attempts to connect, unless an attempt has just failed. It returns when to be called again, and whether there is a connection.
func (l *Links) connect(ctx context.Context, cluster client.ObjectKey, k link) (time.Duration, bool) {
	now := l.config.Clock.Now()
	if wait := max(l.config.Retry-now.Sub(k.failed), k.rested.Sub(now)); !k.failed.IsZero() && wait > 0 {
		return wait, false
	}
	guest, err := l.dial(ctx, cluster)
	now = l.config.Clock.Now()
	if err != nil {
		log.FromContext(ctx).Info("Connecting to a guest failed", "error", message.Error(err).Error())
		l.change(cluster, func(k *link) {
			k.failed, k.health.LastProbe, k.health.Exceeded = now, now, nil
			k.health.Failures++
		})
		return l.config.Retry, false
	}
	log.FromContext(ctx).Info("Connected to a guest")
	connected := false
	l.change(cluster, func(k *link) {
		if l.closed {
			return
		}
		*k = link{guest: guest, health: Health{LastProbe: now, LastSuccess: now}, told: k.told}
		connected = true
	})
	if !connected {
		guest.Store.Close()
	}
	return probeInterval, connected
}

// dial makes the clients of a guest, and probes it.
func (l *Links) dial(ctx context.Context, cluster client.ObjectKey) (*Guest, error) {
	config, err := l.config.Access(ctx, cluster)
	if err != nil {
		return nil, err
	}
	config.UserAgent, config.QPS, config.Burst = v1beta1.ManagedByOperator, 20, 30
	config.Timeout, config.WarningHandler = l.config.Timeout, rest.NoWarnings{} // a guest says what it likes
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &bounded{next: next, scheme: l.config.Scheme} })
	connection, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	discoverer, err := discovery.NewDiscoveryClientForConfigAndClient(config, connection)
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	live, err := client.New(config, client.Options{Scheme: l.config.Scheme, HTTPClient: connection, Mapper: newMapper(discoverer.ServerResourcesForGroupVersion)})
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	guest := &Guest{Config: config, Live: live, probe: func(ctx context.Context) error {
		_, err := discoverer.RESTClient().Get().AbsPath("/").Timeout(probeTimeout).DoRaw(ctx)
		return err
	}}
	if err := guest.probe(ctx); err != nil {
		return nil, fmt.Errorf("probing: %w", err)
	}
	untimed := *connection
	untimed.Timeout = 0
	guest.Store = store.New(store.Config{
		Guest: config, HTTP: &untimed, Live: live, Codecs: l.codecs, Kinds: l.config.Kinds, Timeout: l.config.Timeout, Bounds: l.config.Bounds,
		Exceeded: func(why error) { l.exceeded(cluster, guest, why) },
		Noticed: func() {
			if l.config.Noticed != nil {
				l.config.Noticed(context.Background(), cluster)
			}
		},
	})
	guest.Live = guest.Store.Lists()
	return guest, nil
}

// exceeded closes the connection to a guest that exceeds the bounds of what is kept of it. It is connected again after
// Backoff.
func (l *Links) exceeded(cluster client.ObjectKey, guest *Guest, why error) {
	now, closed := l.config.Clock.Now(), false
	l.change(cluster, func(k *link) {
		if k.guest == guest {
			k.guest, k.failed, k.rested, k.health.Exceeded, closed = nil, now, now.Add(l.config.Backoff), why, true
		}
	})
	if closed {
		l.config.Changed(context.Background(), cluster)
	}
}

// check probes a connection, unless it has just been probed, and closes it after too many failures. It returns when to
// be called again, and whether it has closed the connection.
func (l *Links) check(ctx context.Context, cluster client.ObjectKey, k link) (time.Duration, bool) {
	if wait := probeInterval - l.config.Clock.Since(k.health.LastProbe); wait > 0 {
		return wait, false
	}
	err := k.guest.probe(ctx)
	now := l.config.Clock.Now()
	after, lost := probeInterval, false
	l.change(cluster, func(k *link) {
		k.health.LastProbe = now
		if err == nil {
			k.health.Failures, k.health.LastSuccess = 0, now
			return
		}
		k.health.Failures++
		// Other credentials are worth an attempt at once.
		refused := apierrors.IsUnauthorized(err)
		if lost = refused || k.health.Failures >= maxFailures; !lost {
			return
		}
		k.guest.Store.Close()
		k.guest = nil
		if after = l.config.Retry; refused {
			after = 0
		}
	})
	if lost {
		log.FromContext(ctx).Info("Disconnected from a guest whose probes fail", "error", message.Error(err).Error())
	}
	return after, lost
}

// tells reports whether Changed has to be called: for what has just changed, and once for a guest that is unresponsive.
func (l *Links) tells(cluster client.ObjectKey, changed bool) bool {
	now := l.config.Clock.Now()
	tells := changed
	l.change(cluster, func(k *link) {
		unresponsiveSince := k.health.LastSuccess.Add(l.config.UnresponsiveAfter)
		if tells = tells || unresponsiveSince.Before(now) && k.told.Before(unresponsiveSince); tells {
			k.told = now
		}
	})
	return tells
}
