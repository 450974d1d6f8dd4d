// SPDX-License-Identifier: Apache-2.0

// Package methods alters the methods by which Karpenter core chooses the nodes that it disrupts.
package methods

import (
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
)

// Core is the part of Karpenter core that methods use.
type Core struct {
	Guest       client.Client
	Cluster     *state.Cluster
	Provisioner *provisioning.Provisioner
	Recorder    events.Recorder
	Clock       clock.Clock
}
