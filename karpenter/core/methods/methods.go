// SPDX-License-Identifier: Apache-2.0

// Package methods alters the methods by which Karpenter core chooses the nodes that it disrupts.
package methods

import (
	"context"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	nodeutils "sigs.k8s.io/karpenter/pkg/utils/node"
)

// Core is the part of Karpenter core that methods use.
type Core struct {
	Guest       client.Client
	Cluster     *state.Cluster
	Provisioner *provisioning.Provisioner
	Recorder    events.Recorder
	Clock       clock.Clock
}

// Pending counts the pods for which Karpenter core plans.
func (c Core) Pending(ctx context.Context) (int, error) {
	pods, err := nodeutils.GetProvisionablePods(ctx, c.Guest)
	return len(pods), err //nolint:wrapcheck // the caller reports what it did
}
