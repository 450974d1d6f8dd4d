// SPDX-License-Identifier: Apache-2.0

package environment

import (
	"context"

	"k8s.io/utils/ptr"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	autonodemanager "github.com/autonode-io/autonode/internal/manager"
)

// Manager returns a manager of the guest for the controllers under test. It serves nothing, and a controller may be registered once more in
// another one.
func (s *Environment) Manager(configure ...func(*manager.Options)) manager.Manager {
	s.t.Helper()
	options := manager.Options{
		Scheme:     s.Guest.GetScheme(),
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: ctrlconfig.Controller{SkipNameValidation: ptr.To(true)},
	}
	for _, f := range configure {
		f(&options)
	}
	m, err := autonodemanager.New(s.Guest.GetConfig(), options)
	if err != nil {
		s.t.Fatal(err)
	}
	return m
}

// Run runs a manager, with the values of ctx, until the test ends.
func (s *Environment) Run(ctx context.Context, m manager.Manager) {
	s.t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- m.Start(ctx) }()
	s.t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	})
}
