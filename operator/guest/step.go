// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/internal/clusterstatus"
	"github.com/autonode-io/autonode/operator/guest/connection"
	"github.com/autonode-io/autonode/operator/guest/egress"
	"github.com/autonode-io/autonode/operator/guest/outage"
	"github.com/autonode-io/autonode/operator/guest/store"
	"github.com/autonode-io/autonode/operator/guest/watch"
	"github.com/autonode-io/autonode/operator/message"
	"github.com/autonode-io/autonode/operator/scope"
)

// Name implements scope.Step.
func (c *Connections) Name() string { return "guest" }

// Reconcile sets s.Guest and owns GuestReachable. While AutoNode is on, the later steps wait for an unreachable guest.
// While AutoNode is being removed they run, because the teardown has a deadline.
func (c *Connections) Reconcile(ctx context.Context, s *scope.Scope) (scope.Result, error) {
	if !wantsGuest(s.HostedCluster) {
		meta.RemoveStatusCondition(&s.HostedCluster.Status.Conditions, v1beta1.GuestReachable)
		return scope.Result{}, nil
	}
	result, err := c.connect(ctx, s)
	if s.Draining() { // later steps run: the teardown reports what it means that the guest can't be used
		result = scope.Result{RequeueAfter: result.RequeueAfter, Resuming: result.Resuming}
	}
	return result, err
}

// connect sets s.Guest and GuestReachable. It queries the guest for nothing but the kinds that it serves.
func (c *Connections) connect(ctx context.Context, s *scope.Scope) (scope.Result, error) {
	conn, err := c.connection(s)
	if errors.Is(err, connection.ErrNotConnected) {
		return c.disconnected(ctx, s), nil
	}
	if err != nil {
		return scope.Result{}, err
	}
	host, health := conn.Config.Host, c.connections.Health(s.ClusterKey())
	if since, requeueAfter, unresponsive := c.outages.Unresponsive(s.ClusterKey(), health); unresponsive {
		message := c.setUnresponsive(s, host, since)
		return scope.Result{Wait: true, Message: message, RequeueAfter: requeueAfter}, nil
	}
	guest := c.outages.Guest(conn, client.ObjectKeyFromObject(s.HostedCluster))
	guest.Complete, err = c.watches.Start(ctx, s, conn, guest)
	if err != nil && s.Draining() {
		// A drain does without watches, and keeps a deadline that no kind which can't be listed may move.
		log.FromContext(ctx).V(1).Info("The guest can't be watched", "error", err.Error())
		if conn, err = c.connection(s); err == nil {
			guest = c.outages.Guest(conn, client.ObjectKeyFromObject(s.HostedCluster))
		}
	}
	switch {
	case errors.Is(err, connection.ErrNotConnected), errors.Is(err, store.ErrClosed):
		return c.disconnected(ctx, s), nil
	case err != nil && outage.Lost(guest, err):
		return c.lose(s, host, err), nil
	case err != nil:
		// One request failed on an open connection. That isn't enough to call the guest unreachable.
		return scope.Result{}, err
	}
	s.Guest = guest
	return c.connected(s, conn), nil
}

// wantsGuest reports whether AutoNode is on, or not yet removed completely.
func wantsGuest(hostedCluster *v1beta1.HostedCluster) bool {
	return hostedCluster.Spec.AutoNode != nil && hostedCluster.DeletionTimestamp.IsZero() ||
		controllerutil.ContainsFinalizer(hostedCluster, v1beta1.HostedClusterFinalizer)
}

// connection returns the connection to a Scope's guest, but none that stays open until it is noticed that its Cluster is
// gone: closing it enqueues no HostedCluster, so the counts of a deleted Cluster would stay.
func (c *Connections) connection(s *scope.Scope) (*connection.Guest, error) {
	if s.Cluster == nil {
		return nil, connection.ErrNotConnected
	}
	return c.connections.Guest(s.ClusterKey())
}

// disconnected sets GuestReachable for a guest without a connection, and has it connected.
func (c *Connections) disconnected(ctx context.Context, s *scope.Scope) scope.Result {
	key := s.ClusterKey()
	c.watches.Lost(key)
	c.outages.Forget(key)
	c.access.enqueue(key)
	reason, message, untried := c.diagnose(ctx, s)
	if untried && meta.IsStatusConditionTrue(s.HostedCluster.Status.Conditions, v1beta1.GuestReachable) {
		// A new operator or a renewed kubeconfig isn't a change of the guest.
		return scope.Result{Wait: true, Message: message, RequeueAfter: outage.Recheck, Resuming: true}
	}
	status := metav1.ConditionFalse
	if reason == v1beta1.GuestConnectingReason {
		status = metav1.ConditionUnknown // no attempt yet
	}
	setReachable(s, status, reason, message)
	return scope.Result{Wait: true, Message: message, RequeueAfter: outage.Recheck}
}

// diagnose returns why there is no connection, as far as the management cluster has it. Untried means that there is no
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
	err := c.access.secrets.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: name}, read)
	switch {
	case apierrors.IsNotFound(err):
		return v1beta1.GuestConnectingReason, fmt.Sprintf("waiting for kubeconfig Secret %s/%s with the label %s=%s",
			key.Namespace, name, clusterv1.ClusterNameLabel, key.Name), false
	case err != nil:
		return v1beta1.GuestUnreachableReason, fmt.Sprintf("kubeconfig Secret %s/%s: %s", key.Namespace, name, err), false
	case !isKubeconfig(read):
		return v1beta1.GuestUnreachableReason, fmt.Sprintf("kubeconfig Secret %s/%s: its label %s has to be %q",
			key.Namespace, name, clusterv1.ClusterNameLabel, key.Name), false
	}
	config, err := c.access.kubeconfigs.config(read)
	if err != nil {
		return v1beta1.GuestUnreachableReason, fmt.Sprintf("kubeconfig Secret %s/%s can't be used: %s", key.Namespace, name, err), false
	}
	if c.access.dialer.Forbidden(key.String()) {
		return v1beta1.GuestAddressForbiddenReason, fmt.Sprintf("%s of kubeconfig Secret %s/%s: %s; the platform team sets --guest-networks",
			config.Host, key.Namespace, name, egress.ErrForbidden), false
	}
	if c.access.dialer.State(key.String()) == egress.BackOff {
		return v1beta1.GuestOverBudgetReason, overBudget(config.Host) +
			"; the operator disconnected, and connects again within five minutes", false
	}
	health := c.connections.Health(key)
	switch {
	case health.Exceeded != nil:
		return v1beta1.GuestOverBudgetReason, fmt.Sprintf("%s exceeds what the operator keeps of one guest: %s; the operator disconnected, and "+
			"connects again within five minutes",
			config.Host, health.Exceeded), false
	case health.Failures == 0:
		return v1beta1.GuestConnectingReason, fmt.Sprintf("connecting to %s", config.Host), true
	case health.Refused != 0:
		return v1beta1.GuestUnreachableReason, fmt.Sprintf("%s refuses the credentials of kubeconfig Secret %s/%s (%d %s); renew them",
			config.Host, key.Namespace, name, health.Refused, http.StatusText(health.Refused)), false
	case health.LastSuccess.IsZero():
		return v1beta1.GuestUnreachableReason, fmt.Sprintf("%s doesn't answer as an API server; check the server and the certificate authority "+
			"in kubeconfig Secret %s/%s, and the control plane's pods", config.Host, key.Namespace, name), false
	default:
		return v1beta1.GuestUnreachableReason, fmt.Sprintf("%s has stopped answering; last seen at %s",
			config.Host, health.LastSuccess.UTC().Format(time.RFC3339)), false
	}
}

// Lost reports whether an error of a step means that the guest doesn't answer. Then GuestReachable reports it, no later
// step gets the guest, and the breaker is tripped. A guest that answers slowly loses only the rest of the reconciliation.
func (c *Connections) Lost(s *scope.Scope, err error) (scope.Result, bool) {
	if s.Guest == nil || !outage.Lost(s.Guest, err) {
		return scope.Result{}, false
	}
	result := c.lose(s, s.Guest.Config.Host, err)
	s.Guest = nil
	return result, true
}

func (c *Connections) lose(s *scope.Scope, host string, err error) scope.Result {
	var slow *outage.SlowError
	if errors.As(err, &slow) {
		return scope.Result{Wait: true, Message: host + ": " + slow.Error(), RequeueAfter: outage.MinBackoff}
	}
	since, backoff := c.outages.Trip(s.ClusterKey())
	message := c.setUnresponsive(s, host, since)
	c.outages.Transition(s.ClusterKey(), meta.FindStatusCondition(s.HostedCluster.Status.Conditions, v1beta1.GuestReachable))
	return scope.Result{Wait: true, Message: message, RequeueAfter: backoff}
}

// setUnresponsive sets GuestReachable for a guest whose connection stands and that doesn't answer.
func (c *Connections) setUnresponsive(s *scope.Scope, host string, since time.Time) (message string) {
	reason, message := v1beta1.GuestUnreachableReason, fmt.Sprintf("%s doesn't answer within %s, since %s; check the control plane's pods; "+
		"tried again when /readyz recovers, within %s at the latest",
		host, c.timeout, since.UTC().Format(time.RFC3339), outage.MaxBackoff)
	if c.access.dialer.State(s.ClusterKey().String()) != egress.Within {
		reason, message = v1beta1.GuestOverBudgetReason, fmt.Sprintf("%s, and doesn't answer within %s, since %s; the operator reads it at "+
			"a lower rate",
			overBudget(host), c.timeout, since.UTC().Format(time.RFC3339))
	}
	setReachable(s, metav1.ConditionFalse, reason, message)
	return message
}

// connected sets GuestReachable for a guest that answers. Its reason reports whether the guest is within its budget, and
// whether its objects can be read.
func (c *Connections) connected(s *scope.Scope, conn *connection.Guest) scope.Result {
	host, reason, text := conn.Config.Host, v1beta1.AsExpectedReason, ""
	switch count, example := conn.Store.Unreadable(); {
	case c.access.dialer.State(s.ClusterKey().String()) != egress.Within:
		reason, text = v1beta1.GuestOverBudgetReason, overBudget(host)+"; the operator reads it at a lower rate"
	case c.watches.OverBudget(client.ObjectKeyFromObject(s.HostedCluster)):
		reason, text = v1beta1.GuestOverBudgetReason, host+" changes more objects than one guest may; it is "+
			"reconciled every "+watch.Delay.String()
	case count > 0:
		reason = v1beta1.GuestObjectsUnreadableReason
		text = fmt.Sprintf("%d objects in the guest can't be read completely, such as %s; the cluster's admin has to correct or delete them",
			count, message.QuoteUpTo(example, 2*message.QuoteLimit))
	}
	setReachable(s, metav1.ConditionTrue, reason, text)
	if reason == v1beta1.GuestOverBudgetReason {
		return scope.Result{RequeueAfter: watch.RecheckBudget}
	}
	return scope.Result{}
}

func overBudget(host string) string { return host + " sends more than one guest may" }

// setReachable takes a guest that isn't reachable for asleep where its control plane is to have no replicas.
func setReachable(s *scope.Scope, status metav1.ConditionStatus, reason, message string) {
	if status != metav1.ConditionTrue && clusterstatus.ControlPlaneAsleep(s.Cluster) {
		status, reason = metav1.ConditionUnknown, v1beta1.ControlPlaneAsleepReason
		message = fmt.Sprintf("the control plane of Cluster %s is to have no replicas; scale it up", s.ClusterKey())
	}
	s.SetCondition(metav1.Condition{Type: v1beta1.GuestReachable, Status: status, Reason: reason, Message: message})
}
