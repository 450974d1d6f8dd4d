// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/guest/egress"
	"github.com/autonode-io/autonode/operator/scope"
)

const (
	// probesMissed in a row mean that a guest doesn't answer; the connection is closed after five. One is no more than an
	// API server that restarts.
	probesMissed = 2
	// probeFailure is by when so many are missed: a probe starts every ten seconds, and takes five seconds at most.
	probeFailure = 25 * time.Second
)

// outage is what is known of a guest whose connection stands and that doesn't answer.
type outage struct {
	Breaker
	since time.Time // when a call was first not answered
	// probing: a reconciliation asks the guest again.
	probing bool
	// transition is GuestReachable's.
	transition metav1.Time
}

// unresponsive reports whether a guest with a connection has to be left alone, since when it doesn't answer, and when
// to ask it again.
func (c *Connections) unresponsive(key client.ObjectKey) (since time.Time, again time.Duration, unresponsive bool) {
	health := c.links.Health(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now() // once: what is zero or less triggers no reconcile
	known, ok := c.outages[key]
	switch {
	case ok && known.probing:
		delete(c.outages, key) // and it has answered
		ok = false
	case ok && known.Left(now) > 0:
		return known.since, known.Left(now), true
	case ok && health.Failures > 0:
		return known.since, recheck, true
	}
	if health.Failures >= probesMissed {
		return health.LastSuccess, recheck, true
	}
	if ok {
		known.probing = true
	}
	return time.Time{}, 0, false
}

// slowed remembers that a guest has held a worker for long.
func (c *Connections) slowed(hostedCluster client.ObjectKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	maps.DeleteFunc(c.slow, func(_ client.ObjectKey, until time.Time) bool { return !now.Before(until) })
	c.slow[hostedCluster] = now.Add(slowFor)
}

// Slow reports whether a HostedCluster's guest has held a worker for long in the last minutes.
func (c *Connections) Slow(hostedCluster client.ObjectKey) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.clock.Now().Before(c.slow[hostedCluster])
}

// backoff returns how long other controllers leave a guest alone; zero for not at all. The HostedCluster's
// reconciliation is the half-open probe.
func (c *Connections) backoff(key client.ObjectKey) time.Duration {
	health := c.links.Health(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	known, ok := c.outages[key]
	switch {
	case ok && !known.probing:
		return max(known.Left(c.clock.Now()), recheck)
	case health.Failures >= probesMissed:
		return recheck
	}
	return 0
}

// Lost reports whether an error of a step means that the guest doesn't answer. Then GuestReachable says so, no later
// step gets the guest, and the breaker is tripped. A guest that answers slowly loses only the rest of the reconciliation.
func (c *Connections) Lost(s *scope.Scope, err error) (scope.Result, bool) {
	if s.Guest == nil || !lostGuest(s.Guest, err) {
		return scope.Result{}, false
	}
	result := c.lose(s, s.Guest.Config.Host, err)
	s.Guest = nil
	return result, true
}

func (c *Connections) lose(s *scope.Scope, host string, err error) scope.Result {
	var slow *slowError
	if errors.As(err, &slow) {
		return scope.Result{Wait: true, Message: host + ": " + slow.Error(), RequeueAfter: MinBackoff}
	}
	key, now := s.ClusterKey(), c.clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	known, again := c.outages[key]
	if !again {
		known = &outage{since: now.Add(-c.timeout)}
		c.outages[key] = known
	}
	known.probing = false
	backoff := known.Trip(now)

	reason, message := c.unanswered(key, host, known.since)
	setReachable(s, metav1.ConditionFalse, reason, message)
	condition := meta.FindStatusCondition(s.HostedCluster.Status.Conditions, v1beta1.GuestReachable)
	if again { // that it was tried in between is no transition
		condition.LastTransitionTime = known.transition
	}
	known.transition = condition.LastTransitionTime
	return scope.Result{Wait: true, Message: message, RequeueAfter: backoff}
}

func (c *Connections) unanswered(key client.ObjectKey, host string, since time.Time) (reason, message string) {
	if c.access.dialer.State(key.String()) != egress.Within {
		return v1beta1.GuestOverBudgetReason, fmt.Sprintf("%s, and doesn't answer within %s, since %s; the operator reads it at a lower rate",
			overBudget(host), c.timeout, since.UTC().Format(time.RFC3339))
	}
	return v1beta1.GuestUnreachableReason, fmt.Sprintf("%s doesn't answer within %s, since %s; look at the control plane's pods", host, c.timeout, since.UTC().Format(time.RFC3339))
}
