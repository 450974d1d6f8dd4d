// SPDX-License-Identifier: Apache-2.0

// Package outage decides when to leave a guest alone that doesn't answer, or answers slowly.
package outage

import (
	"maps"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/autonode-io/autonode/operator/guest/connection"
	"github.com/autonode-io/autonode/operator/scope"
)

const (
	// Recheck is the interval at which a guest without a connection, or with missed probes, is checked again: a failed
	// connection causes no event.
	Recheck = 5 * time.Second
	// ProbeFailure is by when probesMissed are missed: a probe starts every ten seconds, and takes five seconds at most.
	ProbeFailure = 25 * time.Second
	// probesMissed in a row mean that a guest doesn't answer; the connection is closed after five. One is no more than an
	// API server that restarts.
	probesMissed = 2
)

// Tracker tracks the guests that don't answer although they are connected, and those that answer slowly.
type Tracker struct {
	clock clock.PassiveClock
	// timeout of a call to a guest.
	timeout time.Duration

	mu      sync.Mutex
	outages map[client.ObjectKey]*outage   // by the Cluster
	slow    map[client.ObjectKey]time.Time // until when HostedClusters count as slow
}

// outage is the state of a guest that doesn't answer although its connection stands.
type outage struct {
	Breaker
	since time.Time // when a call was first not answered
	// probing: a reconciliation queries the guest again.
	probing bool
	unready bool // by /readyz
	// transition is GuestReachable's; zero before Transition.
	transition metav1.Time
}

// NewTracker returns a Tracker for guests whose calls have that timeout.
func NewTracker(clk clock.PassiveClock, timeout time.Duration) *Tracker {
	return &Tracker{clock: clk, timeout: timeout, outages: map[client.ObjectKey]*outage{}, slow: map[client.ObjectKey]time.Time{}}
}

// Unresponsive reports whether a guest with a connection has to be left alone, since when it doesn't answer, and when to
// ask it again. Where it returns false after a back-off, the caller's reconciliation is the half-open probe.
func (t *Tracker) Unresponsive(cluster client.ObjectKey, health connection.Health,
) (since time.Time, requeueAfter time.Duration, unresponsive bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock.Now() // once: what is zero or less triggers no reconcile
	known, ok := t.outages[cluster]
	switch {
	case ok && known.probing:
		delete(t.outages, cluster) // and it has answered
		log.Log.Info("A guest answers again", "Cluster", cluster, "after", now.Sub(known.since).String())
		ok = false
	case ok && known.Remaining(now) > 0:
		return known.since, known.Remaining(now), true
	case ok && health.Failures > 0:
		return known.since, Recheck, true
	}
	if health.Failures >= probesMissed {
		return health.LastSuccess, Recheck, true
	}
	if ok {
		known.probing = true
	}
	return time.Time{}, 0, false
}

// Backoff returns how long other controllers leave a guest alone; zero for not at all. The HostedCluster's
// reconciliation is the half-open probe.
func (t *Tracker) Backoff(cluster client.ObjectKey, health connection.Health) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	known, ok := t.outages[cluster]
	switch {
	case ok && !known.probing:
		return max(known.Remaining(t.clock.Now()), Recheck)
	case health.Failures >= probesMissed:
		return Recheck
	}
	return 0
}

// Trip trips the breaker of a guest that didn't answer. It returns since when the guest doesn't answer, and the
// back-off.
func (t *Tracker) Trip(cluster client.ObjectKey) (since time.Time, backoff time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock.Now()
	known, ok := t.outages[cluster]
	if !ok {
		known = &outage{since: now.Add(-t.timeout)}
		log.Log.Info("A guest doesn't answer", "Cluster", cluster)
		t.outages[cluster] = known
	}
	known.probing = false
	return known.since, known.Trip(now)
}

// Recovered asks whether a guest is ready during its back-off, and ends that if it wasn't before. One that is ready and answers no call
// keeps it.
func (t *Tracker) Recovered(cluster client.ObjectKey, ready func() error) (recovered bool) {
	if t.Backoff(cluster, connection.Health{}) == 0 {
		return false
	}
	err := ready()
	t.mu.Lock()
	defer t.mu.Unlock()
	if known, ok := t.outages[cluster]; ok {
		if recovered = known.unready && err == nil; recovered {
			known.until = t.clock.Now()
		}
		known.unready = err != nil
	}
	return recovered
}

// Transition gives a condition that reports an outage the time of the outage's first report: a half-open probe in
// between is no transition.
func (t *Tracker) Transition(cluster client.ObjectKey, reported *metav1.Condition) {
	t.mu.Lock()
	defer t.mu.Unlock()
	known, ok := t.outages[cluster]
	if !ok {
		return
	}
	if known.transition.IsZero() {
		known.transition = reported.LastTransitionTime
	}
	reported.LastTransitionTime = known.transition
}

// Forget drops the outage of a guest whose connection no longer exists.
func (t *Tracker) Forget(cluster client.ObjectKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.outages, cluster)
}

// Guest returns a guest for one reconciliation, whose calls fail fast.
func (t *Tracker) Guest(conn *connection.Guest, hostedCluster client.ObjectKey) *scope.Guest {
	calls := &failFast{clock: t.clock, limit: callsPerPass * t.timeout, slow: func() { t.slowed(hostedCluster) }}
	return &scope.Guest{Cached: failFastClient{conn.Store, calls}, Live: failFastClient{conn.Live, calls}, Config: conn.Config}
}

// slowed records that a guest has held a worker for long.
func (t *Tracker) slowed(hostedCluster client.ObjectKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock.Now()
	maps.DeleteFunc(t.slow, func(_ client.ObjectKey, until time.Time) bool { return !now.Before(until) })
	t.slow[hostedCluster] = now.Add(slowFor)
}

// Slow reports whether a HostedCluster's guest has held a worker for long in the last minutes.
func (t *Tracker) Slow(hostedCluster client.ObjectKey) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.clock.Now().Before(t.slow[hostedCluster])
}
