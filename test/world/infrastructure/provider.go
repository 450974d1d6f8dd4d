// SPDX-License-Identifier: Apache-2.0

// Package infrastructure is the world's Cluster API infrastructure provider: a cloud whose machines are kwok nodes.
//
// It runs inside the process that starts it, against the management cluster, and follows Cluster API's v1beta2
// contract (see api/v1beta1). A KwokMachine becomes a Node of its guest, made from the Machine's bootstrap data as a
// kubelet would make it, and stays alive by kwok. Faults can be asked for by annotation.
package infrastructure

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
)

// Defaults of Config.
const (
	DefaultProvisioningDelay = 200 * time.Millisecond
	DefaultRegistrationDelay = 300 * time.Millisecond
)

// Config is what a Provider needs.
type Config struct {
	// Management is the management cluster, with the rights of an administrator. Required. The CRDs of Cluster API core and
	// of this package (InstallCRDs) must be there.
	Management *rest.Config

	// Logger gets the controllers' logs and, from warnings up, kwok's. Default: none are written.
	Logger logr.Logger

	// GuestConfig returns how a guest is reached. Default: the admin kubeconfig in the Secret `<cluster>-kubeconfig`, key
	// `value`, as Cluster API's contract has it.
	GuestConfig func(ctx context.Context, namespace, cluster string) (*rest.Config, error)

	// ProvisioningDelay and RegistrationDelay are for machines that don't say their own. Zero means the default, a
	// negative value means none.
	ProvisioningDelay time.Duration
	RegistrationDelay time.Duration

	// Concurrency is how many machines are reconciled at once. Default 16.
	Concurrency int
}

// Provider is a running infrastructure provider.
type Provider struct{}

// Start starts the provider and returns when its caches have synced. It runs until Stop is called; ctx only bounds the
// start.
func Start(ctx context.Context, config Config) (*Provider, error) {
	return nil, errors.New("not built yet")
}

// Stop stops the provider and waits until everything it started has ended. Nodes are left as they are.
func (p *Provider) Stop() error { return nil }
