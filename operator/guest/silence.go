// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/egress"
	"github.com/autonode-io/autonode/operator/scope"
)

const (
	// probesMissed in a row mean that a guest doesn't answer; clustercache closes the connection after five. One is no more than an
	// API server that restarts.
	probesMissed = 2
	// probeFailure is by when so many are missed: clustercache probes every ten seconds, for five seconds at most.
	probeFailure = 25 * time.Second
	// maxRest bounds how long a guest is left alone that accepts probes and answers nothing else. It doubles from recheck.
	maxRest = 5 * time.Minute
)

// silence is what is known of a guest whose connection stands and that doesn't answer.
type silence struct {
	since time.Time // when a call was first not answered
	until time.Time // nothing is asked before
	rest  time.Duration
	// tried is true from when it is asked again until it doesn't answer that.
	tried bool
	// transition is GuestReachable's.
	transition metav1.Time
}

// silent says whether a guest with a connection is to be left alone, since when it doesn't answer, and when to look again.
func (c *Connections) silent(ctx context.Context, key client.ObjectKey) (since time.Time, rest time.Duration, silent bool) {
	health := c.clusters.GetHealthCheckingState(ctx, key)
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now() // once: a rest that is over would never be followed by a look
	known, ok := c.silences[key]
	switch {
	case ok && known.tried:
		delete(c.silences, key) // and it has answered
		ok = false
	case ok && now.Before(known.until):
		return known.since, known.until.Sub(now), true
	case ok && health.ConsecutiveFailures > 0:
		return known.since, recheck, true
	}
	if health.ConsecutiveFailures >= probesMissed {
		return health.LastProbeSuccessTime, recheck, true
	}
	if ok {
		known.tried = true
	}
	return time.Time{}, 0, false
}

// resting says how long other controllers are to leave a guest alone; zero for not at all. It is the reconciliation of the HostedCluster that
// asks the guest again when its time has come.
func (c *Connections) resting(ctx context.Context, key client.ObjectKey) time.Duration {
	health := c.clusters.GetHealthCheckingState(ctx, key)
	c.mu.Lock()
	defer c.mu.Unlock()
	known, ok := c.silences[key]
	switch {
	case ok && !known.tried:
		return max(known.until.Sub(c.clock.Now()), recheck)
	case health.ConsecutiveFailures >= probesMissed:
		return recheck
	}
	return 0
}

// Lost says whether an error of a step means that the guest doesn't answer. If so the error is dealt with: GuestReachable says so, the
// guest is taken from the scope so that no step behind tries it, and it is left alone for a while, which gets longer while that goes on.
func (c *Connections) Lost(s *scope.Scope, err error) (scope.Result, bool) {
	if s.Guest == nil || !lostGuest(s.Guest, err) {
		return scope.Result{}, false
	}
	result := c.lose(s, s.Guest.Config.Host)
	s.Guest = nil
	return result, true
}

func (c *Connections) lose(s *scope.Scope, host string) scope.Result {
	key, now := s.ClusterKey(), c.clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	known, again := c.silences[key]
	if again {
		known.rest, known.tried = min(2*known.rest, maxRest), false
	} else {
		known = &silence{since: now.Add(-c.timeout), rest: recheck}
		c.silences[key] = known
	}
	known.until = now.Add(known.rest)

	reason, message := c.unanswered(key, host, known.since)
	setReachable(s, metav1.ConditionFalse, reason, message)
	condition := meta.FindStatusCondition(s.HostedCluster.Status.Conditions, v1beta1.GuestReachable)
	if again { // that it was tried in between is no transition
		condition.LastTransitionTime = known.transition
	}
	known.transition = condition.LastTransitionTime
	return scope.Result{Wait: true, Message: message, RequeueAfter: known.rest}
}

func (c *Connections) unanswered(key client.ObjectKey, host string, since time.Time) (reason, message string) {
	if c.access.tunnel.State(key.String()) != egress.Within {
		return v1beta1.GuestOverBudgetReason, fmt.Sprintf("%s, and doesn't answer within %s, since %s; the operator reads it at a lower rate",
			overBudget(host), c.timeout, since.UTC().Format(time.RFC3339))
	}
	return v1beta1.GuestUnreachableReason, fmt.Sprintf("%s doesn't answer within %s, since %s; look at the control plane's pods", host, c.timeout, since.UTC().Format(time.RFC3339))
}
