// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/guest/egress"
	"github.com/autonode-io/autonode/operator/guest/link"
	"github.com/autonode-io/autonode/operator/guest/store"
	"github.com/autonode-io/autonode/operator/scope"
)

// recheck is the interval of attempts to connect: a failed connection causes no event.
const recheck = 5 * time.Second

// Name implements scope.Step.
func (c *Connections) Name() string { return "guest" }

// Reconcile sets s.Guest and owns GuestReachable. While AutoNode is on, the later steps wait for an unreachable guest.
// While AutoNode is being removed they run, because the teardown has a deadline.
func (c *Connections) Reconcile(ctx context.Context, s *scope.Scope) (scope.Result, error) {
	if !wantsGuest(s.HostedCluster) {
		meta.RemoveStatusCondition(&s.HostedCluster.Status.Conditions, v1beta1.GuestReachable)
		return scope.Result{}, nil
	}
	key := s.ClusterKey()
	guest, err := c.connectTo(s)
	if err == nil {
		if since, again, unresponsive := c.unresponsive(key); unresponsive {
			reason, message := c.unanswered(key, guest.Config.Host, since)
			setReachable(s, metav1.ConditionFalse, reason, message)
			return c.passed(s, scope.Result{Wait: true, Message: message, RequeueAfter: again}), nil
		}
		if guest.Complete, err = c.watch(ctx, key, s, guest); err != nil && s.Draining() {
			// A drain does without watches, and keeps a deadline that no kind which can't be listed may move.
			log.FromContext(ctx).V(1).Info("The guest can't be watched", "error", err.Error())
			guest, err = c.connectTo(s)
		}
	}
	switch {
	case errors.Is(err, link.ErrNotConnected), errors.Is(err, store.ErrClosed):
		c.forget(key)
		c.look(key)
		reason, message, untried := c.diagnose(ctx, s)
		if untried && meta.IsStatusConditionTrue(s.HostedCluster.Status.Conditions, v1beta1.GuestReachable) {
			// A new operator or a renewed kubeconfig isn't a change of the guest.
			return c.passed(s, scope.Result{Wait: true, Message: message, RequeueAfter: recheck, Resuming: true}), nil
		}
		status := metav1.ConditionFalse
		if reason == v1beta1.GuestConnectingReason {
			status = metav1.ConditionUnknown // no attempt yet
		}
		setReachable(s, status, reason, message)
		return c.passed(s, scope.Result{Wait: true, Message: message, RequeueAfter: recheck}), nil
	case err != nil && guest != nil && lostGuest(guest, err):
		return c.passed(s, c.lose(s, guest.Config.Host, err)), nil
	case err != nil:
		// One request failed on an open connection. That isn't enough to call the guest unreachable.
		return scope.Result{}, err
	}
	s.Guest = guest
	return c.reached(s), nil
}

// passed is the result for a guest that can't be used: later steps wait, except for the teardown, which reports what
// that means.
func (c *Connections) passed(s *scope.Scope, result scope.Result) scope.Result {
	if s.Draining() {
		return scope.Result{RequeueAfter: result.RequeueAfter, Resuming: result.Resuming}
	}
	return result
}

// connectTo is connect, without the connection that stays open until the cluster cache notices that its Cluster is
// gone: closing it wakes no HostedCluster, so the counts of a deleted Cluster would stay.
func (c *Connections) connectTo(s *scope.Scope) (*scope.Guest, error) {
	if s.Cluster == nil {
		return nil, link.ErrNotConnected
	}
	return c.connect(s.ClusterKey(), client.ObjectKeyFromObject(s.HostedCluster))
}

// connect returns a guest with an open connection, for one reconciliation. It makes no request.
func (c *Connections) connect(key, hostedCluster client.ObjectKey) (*scope.Guest, error) {
	linked, err := c.links.Of(key)
	if err != nil {
		return nil, err
	}
	first := &failFast{clock: c.clock, limit: callsPerPass * c.timeout, slow: func() { c.slowed(hostedCluster) }}
	return &scope.Guest{Cached: failFastClient{linked.Store, first}, Live: failFastClient{linked.Live, first}, Config: linked.Config}, nil
}

// diagnose says why there is no connection, as far as the management cluster knows. Untried means that there is no
// problem and no attempt yet.
func (c *Connections) diagnose(ctx context.Context, s *scope.Scope) (reason, message string, untried bool) {
	key := s.ClusterKey()
	if s.Cluster == nil {
		return v1beta1.GuestConnectingReason, fmt.Sprintf("waiting for Cluster %s", key), false
	}
	if provisioned := s.Cluster.Status.Initialization.InfrastructureProvisioned; provisioned == nil || !*provisioned {
		return v1beta1.GuestConnectingReason, fmt.Sprintf("waiting for the infrastructure of Cluster %s to be provisioned", key), false
	}
	name := secret.Name(key.Name, secret.Kubeconfig)
	read := &corev1.Secret{}
	err := c.secrets.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: name}, read)
	switch {
	case apierrors.IsNotFound(err):
		return v1beta1.GuestConnectingReason, fmt.Sprintf("waiting for kubeconfig Secret %s/%s", key.Namespace, name), false
	case err != nil:
		return v1beta1.GuestUnreachableReason, fmt.Sprintf("kubeconfig Secret %s/%s: %s", key.Namespace, name, err), false
	case !isKubeconfig(read):
		return v1beta1.GuestUnreachableReason, fmt.Sprintf("kubeconfig Secret %s/%s: its label %s has to be %q",
			key.Namespace, name, clusterv1.ClusterNameLabel, key.Name), false
	}
	config, err := c.access.config(read)
	if err != nil {
		return v1beta1.GuestUnreachableReason, fmt.Sprintf("kubeconfig Secret %s/%s can't be used: %s", key.Namespace, name, err), false
	}
	if c.access.dialer.Forbidden(key.String()) {
		return v1beta1.GuestUnreachableReason, fmt.Sprintf("%s of kubeconfig Secret %s/%s: %s; the platform team sets --guest-networks",
			config.Host, key.Namespace, name, egress.ErrForbidden), false
	}
	if c.access.dialer.State(key.String()) == egress.BackOff {
		return v1beta1.GuestOverBudgetReason, overBudget(config.Host) + "; the operator disconnected, and connects again within five minutes", false
	}
	health := c.links.Health(key)
	switch {
	case health.Exceeded != nil:
		return v1beta1.GuestOverBudgetReason, fmt.Sprintf("%s exceeds what the operator keeps of one guest: %s; the operator disconnected, and connects again within five minutes",
			config.Host, health.Exceeded), false
	case health.Failures == 0:
		return v1beta1.GuestConnectingReason, fmt.Sprintf("connecting to %s", config.Host), true
	case health.LastSuccess.IsZero():
		return v1beta1.GuestUnreachableReason, fmt.Sprintf("%s doesn't answer, or refuses the credentials of kubeconfig Secret %s/%s",
			config.Host, key.Namespace, name), false
	default:
		return v1beta1.GuestUnreachableReason, fmt.Sprintf("%s has stopped answering; last seen at %s",
			config.Host, health.LastSuccess.UTC().Format(time.RFC3339)), false
	}
}

func setReachable(s *scope.Scope, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&s.HostedCluster.Status.Conditions, metav1.Condition{
		Type:               v1beta1.GuestReachable,
		Status:             status,
		Reason:             reason,
		Message:            message,
		ObservedGeneration: s.HostedCluster.Generation,
	})
}
