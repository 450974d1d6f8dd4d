// SPDX-License-Identifier: Apache-2.0

// Package connection keeps a connection to each guest: clients, the watches of kinds that controllers read, and a probe every ten
// seconds. It does what Cluster API's clustercache does, in a third of the memory: clustercache keeps all kinds that a
// guest's API server serves, and a cache of informers.
package connection

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
	"github.com/autonode-io/autonode/internal/headers"
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
	// Config is the config of the connection.
	Config *rest.Config
	// Live reads from the API server, and writes.
	Live client.Client
	// Store reads from watches, and writes.
	Store *store.Store

	probe func(ctx context.Context, path string) error
}

// Health is the result of a guest's probes. An attempt to connect counts as a probe.
type Health struct {
	LastProbe, LastSuccess time.Time
	// Failures in a row.
	Failures int
	// Exceeded is why the connection was closed, if the guest exceeded its bounds. It is nil as
	// soon as there is another connection.
	Exceeded error
	// Refused is the HTTP status with which the API server refused the credentials in the last probe: 401 or 403. Zero if it didn't.
	Refused int
}

// refusal returns the HTTP status of an API server that refuses credentials; zero for any other error.
func refusal(err error) int {
	switch {
	case apierrors.IsUnauthorized(err):
		return http.StatusUnauthorized
	case apierrors.IsForbidden(err):
		return http.StatusForbidden
	default:
		return 0
	}
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
	// Probed is called after a connected guest was probed, with another probe, which needs the guest's etcd, too.
	Probed func(ctx context.Context, cluster client.ObjectKey, ready func() error)
	// Retry is the back-off after a failed attempt to connect, Timeout that of a call.
	Retry, Timeout time.Duration
	Clock          clock.PassiveClock
	// Bounds limit the objects of each guest, and Backoff is how long one that exceeds them isn't connected.
	Bounds  store.Bounds
	Backoff time.Duration
	// Charge takes bytes from a guest's budget; see [store.Config].
	Charge func(cluster string, bytes int)
	// Noticed is called when a guest's unreadable objects have changed.
	Noticed func(context.Context, client.ObjectKey)
}

// Manager keeps the connections. It reconciles Clusters.
type Manager struct {
	config Config
	codecs serializer.CodecFactory

	mu     sync.Mutex
	states map[client.ObjectKey]*state
	closed bool
}

// state is the Manager's record of one guest.
type state struct {
	guest        *Guest    // nil without a connection
	failed       time.Time // the last attempt to connect, if it failed
	health       Health
	notified     time.Time // when Changed was last called
	backoffUntil time.Time // when the back-off of a guest ends that exceeded its bounds
}

// New returns a Manager without connections.
func New(config Config) *Manager {
	return &Manager{config: config, codecs: serializer.NewCodecFactory(config.Scheme), states: map[client.ObjectKey]*state{}}
}

// Guest returns the connection to a Cluster's guest, or ErrNotConnected.
func (m *Manager) Guest(cluster client.ObjectKey) (*Guest, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known, ok := m.states[cluster]; ok && known.guest != nil {
		return known.guest, nil
	}
	return nil, ErrNotConnected
}

// Health returns the result of the probes of a Cluster's guest.
func (m *Manager) Health(cluster client.ObjectKey) Health {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known, ok := m.states[cluster]; ok {
		return known.health
	}
	return Health{}
}

// Start closes all connections when ctx ends. It implements manager.Runnable.
func (m *Manager) Start(ctx context.Context) error {
	<-ctx.Done()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for cluster := range m.states {
		m.drop(cluster)
	}
	return nil
}

// Reconcile implements reconcile.Reconciler.
func (m *Manager) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	key := request.NamespacedName
	cluster := &clusterv1.Cluster{}
	err := m.config.Management.Get(ctx, key, cluster)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("reading Cluster %s: %w", key, err)
	}
	if err != nil || !m.config.Wanted(ctx, cluster) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.drop(key)
		return reconcile.Result{}, nil
	}
	if !ptr.Deref(cluster.Status.Initialization.InfrastructureProvisioned, false) {
		return reconcile.Result{}, nil // a change of the Cluster brings us back
	}
	k := m.known(key)
	var after time.Duration
	var changed bool
	if k.guest == nil {
		after, changed = m.connect(ctx, key, k)
	} else {
		after, changed = m.check(ctx, key, k)
	}
	if m.shouldNotify(key, changed) {
		m.config.Changed(ctx, key)
	}
	return reconcile.Result{RequeueAfter: max(after, time.Millisecond)}, nil
}

// known returns a copy of a Cluster's state. Only Reconcile changes it, and never twice at a time for one Cluster.
func (m *Manager) known(cluster client.ObjectKey) state {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.states[cluster] == nil {
		m.states[cluster] = &state{}
	}
	return *m.states[cluster]
}

// change changes a Cluster's state, unless it was dropped meanwhile.
func (m *Manager) change(cluster client.ObjectKey, change func(*state)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k, ok := m.states[cluster]; ok {
		change(k)
	}
}

// drop forgets a Cluster. m.mu is held.
func (m *Manager) drop(cluster client.ObjectKey) {
	if k, ok := m.states[cluster]; ok {
		if k.guest != nil {
			k.guest.Store.Close()
		}
		delete(m.states, cluster)
	}
}

// connect attempts to connect, unless an attempt has just failed. It returns when to be called again, and whether there is a connection.
func (m *Manager) connect(ctx context.Context, cluster client.ObjectKey, k state) (time.Duration, bool) {
	now := m.config.Clock.Now()
	if wait := max(m.config.Retry-now.Sub(k.failed), k.backoffUntil.Sub(now)); !k.failed.IsZero() && wait > 0 {
		return wait, false
	}
	guest, err := m.dial(ctx, cluster)
	now = m.config.Clock.Now()
	if err != nil {
		log.FromContext(ctx).Info("Connecting to a guest failed", "error", message.Error(err).Error())
		m.change(cluster, func(k *state) {
			k.failed, k.health.LastProbe, k.health.Exceeded = now, now, nil
			k.health.Failures++
			k.health.Refused = refusal(err)
		})
		return m.config.Retry, false
	}
	log.FromContext(ctx).Info("Connected to a guest")
	connected := false
	m.change(cluster, func(k *state) {
		if m.closed {
			return
		}
		*k = state{guest: guest, health: Health{LastProbe: now, LastSuccess: now}, notified: k.notified}
		connected = true
	})
	if !connected {
		guest.Store.Close()
	}
	return probeInterval, connected
}

// dial makes the clients of a guest, and probes it.
func (m *Manager) dial(ctx context.Context, cluster client.ObjectKey) (*Guest, error) {
	config, err := m.config.Access(ctx, cluster)
	if err != nil {
		return nil, err
	}
	config.UserAgent, config.QPS, config.Burst = v1beta1.ManagedByOperator, 20, 30
	config.Timeout, config.WarningHandler = m.config.Timeout, rest.NoWarnings{} // a guest may write any text
	headers.Bound(config)
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	charge := func(bytes int) { m.config.Charge(cluster.String(), bytes) }
	bound := func(next http.RoundTripper) http.RoundTripper {
		return &bounded{next: next, scheme: m.config.Scheme, charge: charge}
	}
	calls := &http.Client{Transport: bound(transport), Timeout: config.Timeout}
	streams := &http.Client{Transport: &bounded{next: transport, scheme: m.config.Scheme, charge: charge, streams: true}}
	config.Wrap(bound) // others' clients
	discoverer, err := discovery.NewDiscoveryClientForConfigAndClient(config, calls)
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	live, err := client.New(config,
		client.Options{Scheme: m.config.Scheme, HTTPClient: calls, Mapper: newMapper(discoverer.ServerResourcesForGroupVersion)})
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	guest := &Guest{Config: config, Live: live, probe: func(ctx context.Context, path string) error {
		_, err := discoverer.RESTClient().Get().AbsPath(path).Timeout(probeTimeout).DoRaw(ctx)
		return err
	}}
	if err := guest.probe(ctx, "/"); err != nil {
		return nil, fmt.Errorf("probing: %w", err)
	}
	guest.Store = store.New(store.Config{
		Guest: config, HTTP: streams, Live: live, Codecs: m.codecs, Kinds: m.config.Kinds, Timeout: m.config.Timeout,
		Bounds: m.config.Bounds, Charge: charge,
		Exceeded: func(why error) { m.exceeded(cluster, guest, why) },
		Noticed:  func() { m.config.Noticed(context.Background(), cluster) },
	})
	guest.Live = guest.Store.Lists()
	return guest, nil
}

// exceeded closes the connection to a guest that exceeds its bounds. It is connected again after
// Backoff.
func (m *Manager) exceeded(cluster client.ObjectKey, guest *Guest, why error) {
	now, closed := m.config.Clock.Now(), false
	m.change(cluster, func(k *state) {
		if k.guest == guest {
			k.guest, k.failed, k.backoffUntil, k.health.Exceeded, closed = nil, now, now.Add(m.config.Backoff), why, true
		}
	})
	if closed {
		m.config.Changed(context.Background(), cluster)
	}
}

// check probes a connection, unless it has just been probed, and closes it after too many failures. It returns when to
// be called again, and whether it has closed the connection.
func (m *Manager) check(ctx context.Context, cluster client.ObjectKey, k state) (time.Duration, bool) {
	if wait := probeInterval - m.config.Clock.Since(k.health.LastProbe); wait > 0 {
		return wait, false
	}
	err := k.guest.probe(ctx, "/")
	now := m.config.Clock.Now()
	after, lost := probeInterval, false
	m.change(cluster, func(k *state) {
		k.health.LastProbe = now
		if err == nil {
			k.health.Failures, k.health.LastSuccess, k.health.Refused = 0, now, 0
			return
		}
		k.health.Failures++
		k.health.Refused = refusal(err)
		// Other credentials are worth an attempt at once.
		refused := apierrors.IsUnauthorized(err)
		if lost = refused || k.health.Failures >= maxFailures; !lost {
			return
		}
		k.guest.Store.Close()
		k.guest = nil
		if after = m.config.Retry; refused {
			after = 0
		}
	})
	m.config.Probed(ctx, cluster, func() error { return k.guest.probe(ctx, "/readyz") })
	if lost {
		log.FromContext(ctx).Info("Disconnected from a guest whose probes fail", "error", message.Error(err).Error())
	}
	return after, lost
}

// shouldNotify reports whether Changed has to be called: for a change, and once for a guest that is unresponsive.
func (m *Manager) shouldNotify(cluster client.ObjectKey, changed bool) bool {
	now := m.config.Clock.Now()
	notify := changed
	m.change(cluster, func(k *state) {
		unresponsiveSince := k.health.LastSuccess.Add(m.config.UnresponsiveAfter)
		if notify = notify || unresponsiveSince.Before(now) && k.notified.Before(unresponsiveSince); notify {
			k.notified = now
		}
	})
	return notify
}
