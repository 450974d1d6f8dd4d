// SPDX-License-Identifier: Apache-2.0

// Package infrastructure is the world's Cluster API infrastructure provider: a cloud whose machines are kwok nodes.
//
// It runs inside the process that starts it, against the management cluster, and follows Cluster API's v1beta2
// contract (see api/v1beta1). A KwokMachine becomes a Node of its guest, made from the Machine's bootstrap data as a
// kubelet would make it, and stays alive by kwok. Annotations set faults.
package infrastructure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	autonodemanager "github.com/autonode-io/autonode/internal/manager"
	infrav1 "github.com/autonode-io/autonode/test/world/infrastructure/api/v1beta1"
)

// Defaults of Config.
const (
	DefaultProvisioningDelay = 200 * time.Millisecond
	DefaultRegistrationDelay = 300 * time.Millisecond
)

// machineConcurrency is the concurrency limit of machines' reconciliations.
const machineConcurrency = 16

// Config of a Provider.
type Config struct {
	// Management is the management cluster, with the rights of an administrator. Required. The CRDs of Cluster API core and
	// of this package (CRDs) must be there.
	Management *rest.Config

	// Logger gets the controllers' logs and, from warnings up, kwok's. Default: none are written.
	Logger logr.Logger

	// ProvisioningDelay and RegistrationDelay are for machines that don't say their own. Zero means the default, a
	// negative value means none.
	ProvisioningDelay time.Duration
	RegistrationDelay time.Duration

	// Hypervisor runs the machines for real. Default: they are kwok nodes.
	Hypervisor RealMachines
}

// Provider is a running infrastructure provider.
type Provider struct {
	guests *guests
	cancel context.CancelFunc
	done   chan struct{}
	err    error // valid when done is closed
}

// Start starts the provider and returns when its caches have synced. It runs until Stop is called; ctx only bounds the
// start. Two providers may run in one process, for two management clusters.
func Start(ctx context.Context, config Config) (*Provider, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	manager, err := newManager(config)
	if err != nil {
		return nil, err
	}
	for _, kind := range []string{"KwokCluster", "KwokMachine", "KwokMachineTemplate"} {
		if _, err := manager.GetRESTMapper().RESTMapping(infrav1.GroupVersion.WithKind(kind).GroupKind(), infrav1.GroupVersion.Version); err != nil {
			return nil, fmt.Errorf("looking for kind %s (its CRD is one of CRDs): %w", kind, err)
		}
	}
	p := &Provider{
		guests: &guests{
			access: kubeconfigSecret(manager.GetClient()), logger: config.Logger, identities: newIdentities(), cluster: map[types.NamespacedName]*guest{},
		},
		done: make(chan struct{}),
	}
	if err := setup(manager, config, p.guests); err != nil {
		return nil, err
	}

	running, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go func() {
		defer close(p.done)
		p.err = manager.Start(running)
		p.guests.stop()
	}()
	synced, stopWaiting := context.WithCancel(ctx)
	defer stopWaiting()
	go func() { // a manager that fails will never sync
		select {
		case <-p.done:
			stopWaiting()
		case <-synced.Done():
		}
	}()
	if !manager.GetCache().WaitForCacheSync(synced) {
		return nil, fmt.Errorf("waiting for the caches to sync: %w", cmp.Or(p.Stop(), context.Cause(ctx), errors.New("the manager ended")))
	}
	return p, nil
}

// Stop stops the provider and waits until it has ended. It may be called more than once. Nodes are left as they are. The
// error is what the provider failed with, if it did.
func (p *Provider) Stop() error {
	p.cancel()
	<-p.done
	return p.err
}

// setup lists every controller.
func setup(manager ctrl.Manager, config Config, guests *guests) error {
	management := manager.GetClient()
	for _, each := range []struct {
		concurrency int
		setup       func(ctrl.Manager, ctrlcontroller.Options) error
	}{
		{1, (&clusterReconciler{management: management}).setup},
		{1, (&templateReconciler{management: management}).setup},
		{machineConcurrency, (&machineReconciler{
			management:        management,
			guests:            guests,
			hypervisor:        config.Hypervisor,
			identities:        guests.identities,
			clock:             clock.RealClock{},
			recorder:          manager.GetEventRecorder("kwok-cloud"),
			provisioningDelay: config.ProvisioningDelay,
			registrationDelay: config.RegistrationDelay,
		}).setup},
	} {
		skipNameValidation := true // names are unique per process, but a process may have two providers
		if err := each.setup(manager, ctrlcontroller.Options{
			MaxConcurrentReconciles: each.concurrency,
			SkipNameValidation:      &skipNameValidation,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](50*time.Millisecond, 5*time.Second),
		}); err != nil {
			return fmt.Errorf("setting up a controller: %w", err)
		}
	}
	clusters, err := manager.GetCache().GetInformer(context.Background(), &clusterv1.Cluster{}) // it doesn't wait before the cache is started
	if err != nil {
		return fmt.Errorf("watching Clusters: %w", err)
	}
	if _, err := clusters.AddEventHandler(toolscache.ResourceEventHandlerFuncs{DeleteFunc: guests.drop}); err != nil {
		return fmt.Errorf("watching Clusters: %w", err)
	}
	return nil
}

func newManager(config Config) (ctrl.Manager, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, clusterv1.AddToScheme, infrav1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("building a scheme: %w", err)
		}
	}
	management := rest.CopyConfig(config.Management)
	management.QPS = -1
	management.UserAgent = "autonode-world-infrastructure"
	manager, err := autonodemanager.New(management, ctrl.Options{
		Scheme:  scheme,
		Logger:  config.Logger,
		Metrics: metricsserver.Options{BindAddress: "0"},
		// Bootstrap data is read once per machine; caching every Secret of the management cluster for that would be odd.
		Client: client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}}},
	})
	if err != nil {
		return nil, fmt.Errorf("building a manager: %w", err)
	}
	return manager, nil
}

func (c Config) withDefaults() (Config, error) {
	if c.Management == nil {
		return c, errors.New("Config.Management is missing")
	}
	if c.Logger.GetSink() == nil {
		c.Logger = logr.Discard()
	}
	c.ProvisioningDelay = max(0, cmp.Or(c.ProvisioningDelay, DefaultProvisioningDelay))
	c.RegistrationDelay = max(0, cmp.Or(c.RegistrationDelay, DefaultRegistrationDelay))
	return c, nil
}
