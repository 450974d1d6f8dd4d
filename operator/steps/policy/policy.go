// SPDX-License-Identifier: Apache-2.0

// Package policy applies the admission policies that guard the platform's objects in guest clusters, and that name
// the platform as their owner. They are no security boundary: a cluster's admin may impersonate any user. The steps
// that own the objects restore them.
package policy

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/autonode-io/autonode/internal/lru"
	"github.com/autonode-io/autonode/operator/apply"
	"github.com/autonode-io/autonode/operator/message"
	"github.com/autonode-io/autonode/operator/scope"
)

// Config is New's.
type Config struct {
	Apply *apply.Applier
}

// Policies is the step.
type Policies struct {
	Config
	// users remembers who the operator is in each guest, by the HostedCluster.
	users lru.Cache[types.UID, user]
}

// maxUser limits the name of the operator's user, in bytes: it becomes part of policies.
const maxUser = 512

// user is the operator's user on one connection; the next kubeconfig may name another.
type user struct {
	name       string
	connection *rest.Config
}

var _ scope.Step = (*Policies)(nil)

// New returns the step.
func New(config Config) *Policies {
	return &Policies{Config: config, users: lru.New[types.UID, user](1 << 14)}
}

// Name implements scope.Step.
func (p *Policies) Name() string { return "policy" }

// Reconcile applies the policies. It runs before all other writes to the guest, because the policies have to exempt
// the operator's current user. No policy can block writes of policies. They stay until Karpenter's
// ControlPlaneComponent is gone: the teardown removes them.
func (p *Policies) Reconcile(ctx context.Context, s *scope.Scope) (scope.Result, error) {
	if s.Guest == nil || s.Component == nil {
		return scope.Result{}, nil
	}
	name, err := p.userOf(ctx, s.HostedCluster.UID, s.Guest)
	if err != nil {
		return scope.Result{}, err
	}
	objects, err := Desired(inputFor(s, name))
	if err != nil {
		return scope.Result{}, err
	}
	if err := p.Apply.Objects(ctx, s.Guest.Cached, nil, objects...); err != nil {
		return scope.Result{}, fmt.Errorf("in the guest: %w", err)
	}
	return scope.Result{}, nil
}

// userOf returns the operator's user in the guest, with one request per connection.
func (p *Policies) userOf(ctx context.Context, hostedCluster types.UID, guest *scope.Guest) (string, error) {
	if known, ok := p.users.Get(hostedCluster); ok && known.connection == guest.Config {
		return known.name, nil
	}
	review := &authenticationv1.SelfSubjectReview{}
	if err := guest.Live.Create(ctx, review); err != nil {
		return "", fmt.Errorf("asking the guest who the operator is: %w", err)
	}
	name := review.Status.UserInfo.Username
	if message.QuoteUpTo(name, maxUser) != name {
		return "", fmt.Errorf("the guest reports the operator's user name as %s, which isn't a name", message.Quoted(name))
	}
	p.users.Add(hostedCluster, user{name: name, connection: guest.Config})
	return name, nil
}
