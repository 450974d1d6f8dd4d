// SPDX-License-Identifier: Apache-2.0

// Package apiserver bounds how long tests wait for envtest's API servers, generously: a loaded machine is slow, and no test is about that.
package apiserver

import (
	"fmt"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// Timeout is how long an API server may take to start or to stop, and to serve definitions that were installed. envtest's own are 10 to 20
// seconds, which one of many on a busy core exceeds.
const Timeout = 10 * time.Minute

// New returns an environment with a control plane that isn't started yet.
func New(crds envtest.CRDInstallOptions) *envtest.Environment {
	crds.MaxTime = Timeout
	return &envtest.Environment{ControlPlaneStartTimeout: Timeout, ControlPlaneStopTimeout: Timeout, CRDInstallOptions: crds}
}

// InstallCRDs installs definitions in a running API server, and returns when it serves them.
func InstallCRDs(config *rest.Config, options envtest.CRDInstallOptions) error {
	options.MaxTime = Timeout
	if _, err := envtest.InstallCRDs(config, options); err != nil {
		return fmt.Errorf("installing definitions: %w", err)
	}
	return nil
}
