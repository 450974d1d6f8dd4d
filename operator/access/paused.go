// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/autonode-io/autonode/api/v1beta1"
	"github.com/autonode-io/autonode/operator/scope"
)

// WhilePaused returns the step to run while a HostedCluster is paused. It renews tokens that would expire, because what runs goes
// on running during a pause, however long; it heals and makes nothing.
func (a *Access) WhilePaused() scope.Step { return pausedAccess{a} }

type pausedAccess struct{ *Access }

// Reconcile implements scope.Step.
func (p pausedAccess) Reconcile(ctx context.Context, s *scope.Scope) (scope.Result, error) {
	if s.Component == nil {
		return scope.Result{}, nil
	}
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: s.ControlPlaneNamespace, Name: v1beta1.GuestAccessSecret}
	if err := p.Secrets.Get(ctx, key, secret); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return scope.Result{}, nil
		}
		return scope.Result{}, fmt.Errorf("reading Secret %s: %w", key, err)
	}
	current := tokens{}
	for _, wanted := range s.Profile.Tokens {
		token, err := parse(string(secret.Data[wanted.Key]))
		if err != nil {
			return scope.Result{}, nil //nolint:nilerr // somebody broke it, and healing waits for the end of the pause
		}
		current[wanted.Key] = token
	}
	if left := current.renewAt().Sub(p.Clock.Now()); left > 0 {
		return scope.Result{RequeueAfter: left}, nil
	}
	if s.Guest == nil {
		return scope.Result{}, nil // the guest's step asks to be run again
	}
	return p.Access.Reconcile(ctx, s)
}
